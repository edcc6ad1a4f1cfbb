#include "explain/growth/exponent_range.hpp"
#include "kda/arithmetic/rounded.hpp"
#include "numeric/elementary.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kda_check::explain {

namespace {

using kda::CastPoints;
using kda::DecayForm;
using kda::rounded;
using kda::Rounding;
using kda::TailForm;

constexpr double ln2 = 0x1.62e42fefa39efp-1;

/// Correctly rounded, but for one argument in 2^29 (double rounding), never at the edge of overflow.
float exponential(float x) { return static_cast<float>(numeric::exp(static_cast<double>(x))); }
double exponential(double x) { return numeric::exp(x); }

/// The smallest number that rounds to infinity, and the smallest normal one.
struct Range {
  double infinite, normal;
};
Range range_of(bool is_double, Rounding rounding) {
  if (is_double) return {std::numeric_limits<double>::max(), std::numeric_limits<double>::min()};
  if (rounding == Rounding::fp16) return {65520.0, 0x1p-14};
  if (rounding == Rounding::bf16) return {0x1.ffp127, 0x1p-126};
  return {0x1.ffffffp127, 0x1p-126};
}

Place at_row(Place chunk, std::size_t row, std::size_t channel) {
  chunk.row = row;
  chunk.channel = channel;
  return chunk;
}

/// One chunk under one decay form.
template <class T>
class Scan {
 public:
  Scan(const ChunkRows<T>& chunk, const kda::Arithmetic& form, const CastPoints& casts, ExponentRange& range)
      : chunk_(chunk),
        form_(form),
        casts_(casts),
        range_(range),
        limits_(factor_limits(sizeof(T) == 8, casts)),
        clamp_(form.decay == DecayForm::clamp ? form.clamp * ln2 : std::numeric_limits<double>::infinity()),
        low_(chunk.key_dim),
        high_(chunk.key_dim),
        zero_(chunk.key_dim, T(0)) {}

  void run(std::size_t anchor_rows) {
    scores(anchor_rows);
    if (form_.readout == kda::Readout::centre) readout();
    if (form_.tail != TailForm::factored && form_.tail != TailForm::factored_late) return;
    clamp_ = std::numeric_limits<double>::infinity();
    measure(0, chunk_.rows);
    side(Side::tail, 0, chunk_.rows, zero_.data(), false);
  }

 private:
  void scores(std::size_t anchor_rows) {
    if (form_.decay == DecayForm::pair_late) return pairs(0, chunk_.rows), masked_pairs();
    if (kda::is_pairwise(form_.decay)) return pairs(0, chunk_.rows);
    for (std::size_t from = 0; from < chunk_.rows; from += anchor_rows) {
      const std::size_t to = std::min(from + anchor_rows, chunk_.rows);
      left_of_diagonal(from, to);
      diagonal(from, to, anchor_rows);
    }
  }

  /// Decays of q from the middle between the first row and the last.
  void readout() {
    for (std::size_t i = 0; i < chunk_.rows; ++i)
      for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
        const T exponent = row(i)[k] - (row(0)[k] + row(chunk_.rows - 1)[k]) * T(0.5);
        if (static_cast<double>(exponent) > range_.largest) {
          range_.largest = static_cast<double>(exponent);
          range_.side = Side::readout, range_.place = at_row(chunk_.at, i, k);
        }
        if (range_.overflow || static_cast<double>(exponent) < 0) continue;
        const T factor = rounded(casts_.exponentials, exponential(exponent));
        if (!std::isfinite(rounded(casts_.operands, chunk_.q[i * chunk_.stride + k] * factor)))
          range_.overflow = at_row(chunk_.at, i, k);
      }
  }

  const T* row(std::size_t i) const { return chunk_.G + i * chunk_.stride; }
  const T* first_anchor(std::size_t from) const {
    if (form_.decay != DecayForm::factored && form_.decay != DecayForm::reciprocal) return row(from);
    return from == 0 ? zero_.data() : row(from - 1);
  }

  /// Smallest and largest G of each channel over rows [from, to): the exponents of all rows lie between those
  /// of these two, for a subtraction rounds monotonically.
  void measure(std::size_t from, std::size_t to) {
    std::copy_n(row(from), chunk_.key_dim, low_.begin());
    std::copy_n(row(from), chunk_.key_dim, high_.begin());
    for (std::size_t i = from + 1; i < to; ++i)
      for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
        const T G = row(i)[k];
        low_[k] = G < low_[k] ? G : low_[k];
        high_[k] = G > high_[k] ? G : high_[k];
      }
  }

  void left_of_diagonal(std::size_t from, std::size_t to) {
    if (from == 0) return;
    const T* const anchor = first_anchor(from);
    measure(from, to);
    side(Side::left, from, to, anchor, false);
    measure(0, from);
    side(Side::right, 0, from, anchor, false);
  }

  void diagonal(std::size_t from, std::size_t to, std::size_t anchor_rows) {
    if (form_.decay == DecayForm::anchor_pair) return pairs(from, to);
    const T* anchor = first_anchor(from);
    if (form_.decay == DecayForm::anchor_mid) anchor = row(from + std::min(anchor_rows / 2, to - from - 1));
    measure(from, to);
    side(Side::left, from, to, anchor, true);
    side(Side::right, from, to, anchor, true);
    if (clamp_ < std::numeric_limits<double>::infinity()) clamped(from, to, anchor);
  }

  /// The factors of one side, over the rows last measured.
  void side(Side which, std::size_t from, std::size_t to, const T* anchor, bool is_diagonal) {
    T largest = 0, smallest = 0;
    std::size_t largest_at = 0, smallest_at = 0;
    for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
      const T up = which == Side::left ? high_[k] - anchor[k] : anchor[k] - low_[k];
      const T down = which == Side::left ? low_[k] - anchor[k] : anchor[k] - high_[k];
      if (up > largest) largest = up, largest_at = k;
      if (down < smallest) smallest = down, smallest_at = k;
    }
    const auto exponent = [&](std::size_t i, std::size_t k) {
      return which == Side::left ? row(i)[k] - anchor[k] : anchor[k] - row(i)[k];
    };
    const auto place_of = [&](T value, std::size_t k) {
      std::size_t i = from;
      while (i + 1 < to && exponent(i, k) != value) ++i;
      return at_row(chunk_.at, i, k);
    };
    if (static_cast<double>(largest) > range_.largest) {
      range_.largest = static_cast<double>(largest);
      range_.side = which;
      range_.place = place_of(largest, largest_at);
    }
    // A diagonal row meets itself with weight 1; left of the diagonal what is lost is below the normals too.
    const bool reaches_below = -clamp_ < limits_.smallest_normal - 1e-9;
    if (is_diagonal && reaches_below && smallest < limits_.smallest_normal && range_.lost_weight < 1) {
      range_.lost_weight = 1;
      range_.lost_place = place_of(smallest, smallest_at);
    }
    find_overflow(which, from, to, is_diagonal, largest, exponent);
  }

  /// Evaluates the factors themselves, operand included, where one may overflow.
  template <class Exponent>
  void find_overflow(Side which, std::size_t from, std::size_t to, bool is_diagonal, T largest,
                     Exponent exponent) {
    if (range_.overflow) return;
    if (static_cast<double>(largest) < limits_.overflow - 1 && !operands_may_overflow(from, to, largest))
      return;
    for (std::size_t i = from; i < to; ++i)
      for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
        const double clamped = std::clamp(static_cast<double>(exponent(i, k)), -clamp_, clamp_);
        const T factor = rounded(casts_.exponentials, exponential(static_cast<T>(clamped)));
        const T q = chunk_.q[i * chunk_.stride + k], key = chunk_.k[i * chunk_.stride + k];
        // L has no unmasked column for the first row of a diagonal block.
        const bool key_counts = which != Side::left || !is_diagonal || i > from;
        const bool bad_q = which == Side::left && !std::isfinite(rounded(casts_.score_operands, q * factor));
        const bool is_whole = which == Side::tail && form_.tail == TailForm::factored_late;
        const Rounding rounding = is_whole ? Rounding::none : casts_.score_operands;
        const bool bad_k = key_counts && !std::isfinite(rounded(rounding, key * factor));
        if (!bad_q && !bad_k) continue;
        range_.overflow = at_row(chunk_.at, i, k);
        return;
      }
  }

  /// True if q or k times exp(largest) could be infinite although exp(largest) is not.
  bool operands_may_overflow(std::size_t from, std::size_t to, T largest) const {
    T size = 1;
    for (std::size_t i = from; i < to; ++i)
      for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
        size = std::max(size, std::fabs(chunk_.q[i * chunk_.stride + k]));
        size = std::max(size, std::fabs(chunk_.k[i * chunk_.stride + k]));
      }
    return static_cast<double>(largest) + numeric::log(static_cast<double>(size)) > limits_.overflow - 1;
  }

  /// One exponential for each unmasked pair among rows [from, to): positive only where gates grow.
  void pairs(std::size_t from, std::size_t to) {
    std::copy_n(row(from), chunk_.key_dim, low_.begin());
    for (std::size_t i = from + 1; i < to; ++i)
      for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
        const T G = row(i)[k], exponent = G - low_[k];
        low_[k] = G < low_[k] ? G : low_[k];
        if (!(static_cast<double>(exponent) > range_.largest)) continue;
        range_.largest = static_cast<double>(exponent);
        range_.place = at_row(chunk_.at, i, k);
        if (!range_.overflow && !std::isfinite(exponential(exponent))) range_.overflow = range_.place;
      }
  }

  void masked_pairs() {
    std::copy_n(row(0), chunk_.key_dim, high_.begin());
    for (std::size_t j = 1; j < chunk_.rows; ++j)
      for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
        const T G = row(j)[k], exponent = high_[k] - G;
        high_[k] = G > high_[k] ? G : high_[k];
        if (!(static_cast<double>(exponent) > range_.largest_masked)) continue;
        range_.largest_masked = static_cast<double>(exponent);
        range_.masked_place = at_row(chunk_.at, j, k);
      }
  }

  /// Beyond the clamp the two factors no longer multiply to exp(G_i - G_j).
  void clamped(std::size_t from, std::size_t to, const T* anchor) {
    for (std::size_t k = 0; k < chunk_.key_dim; ++k) {
      const auto at = [&](std::size_t i) { return static_cast<double>(row(i)[k] - anchor[k]); };
      const double reach = std::max(std::fabs(static_cast<double>(low_[k] - anchor[k])),
                                    std::fabs(static_cast<double>(high_[k] - anchor[k])));
      if (reach <= clamp_) continue;
      range_.clamped_excess = std::max(range_.clamped_excess, (reach - clamp_) / ln2);
      for (std::size_t i = from; i < to; ++i)
        for (std::size_t j = from; j <= i; ++j) {
          const double left = std::clamp(at(i), -clamp_, clamp_), right = std::clamp(-at(j), -clamp_, clamp_);
          const double error = std::fabs(numeric::exp(left + right) - numeric::exp(at(i) - at(j)));
          if (!(error > range_.weight_error)) continue;
          range_.weight_error = error;
          range_.wrong_place = at_row(chunk_.at, i, k);
        }
    }
  }

  const ChunkRows<T>& chunk_;
  const kda::Arithmetic& form_;
  const CastPoints& casts_;
  ExponentRange& range_;
  FactorLimits limits_;
  double clamp_;  ///< natural log
  std::vector<T> low_, high_, zero_;
};

}  // namespace

void ExponentRange::merge(const ExponentRange& later) {
  if (later.largest > largest) largest = later.largest, side = later.side, place = later.place;
  if (!overflow) overflow = later.overflow;
  if (later.largest_masked > largest_masked)
    largest_masked = later.largest_masked, masked_place = later.masked_place;
  if (later.lost_weight > lost_weight) lost_weight = later.lost_weight, lost_place = later.lost_place;
  clamped_excess = std::max(clamped_excess, later.clamped_excess);
  if (later.weight_error > weight_error) weight_error = later.weight_error, wrong_place = later.wrong_place;
}

FactorLimits factor_limits(bool is_double, const CastPoints& casts) {
  const Range a = range_of(is_double, casts.exponentials), b = range_of(is_double, casts.score_operands);
  return {numeric::log(std::min(a.infinite, b.infinite)), numeric::log(std::max(a.normal, b.normal))};
}

template <class T>
void scan_exponents(const ChunkRows<T>& chunk, const kda::Arithmetic& form, std::size_t anchor_rows,
                    const CastPoints& casts, ExponentRange& range) {
  Scan<T>(chunk, form, casts, range).run(anchor_rows);
}
template void scan_exponents(const ChunkRows<float>&, const kda::Arithmetic&, std::size_t, const CastPoints&,
                             ExponentRange&);
template void scan_exponents(const ChunkRows<double>&, const kda::Arithmetic&, std::size_t, const CastPoints&,
                             ExponentRange&);

}  // namespace kda_check::explain

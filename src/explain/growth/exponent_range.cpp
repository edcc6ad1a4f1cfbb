#include "explain/growth/exponent_range.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

using kda::DecayForm;
using kda::Rounding;

constexpr double ln2 = 0x1.62e42fefa39efp-1;
constexpr double never = std::numeric_limits<double>::infinity();

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

/// One chunk under one decay form.
class Scan {
 public:
  Scan(const ChunkGates& chunk, const kda::Arithmetic& form, const FactorLimits& limits, ExponentRange& range)
      : chunk_(chunk),
        form_(form),
        limits_(limits),
        range_(range),
        clamp_(form.decay == DecayForm::clamp ? form.clamp * ln2 : never),
        start_(chunk.channels, 0.0) {}

  void run(std::size_t anchor_rows) {
    scores(anchor_rows);
    if (form_.readout == kda::Readout::centre) {
      std::vector<double> centre(chunk_.channels);
      for (std::size_t k = 0; k < centre.size(); ++k) centre[k] = (row(0)[k] + row(chunk_.rows - 1)[k]) / 2;
      factors(Side::readout, 0, chunk_.rows, centre.data(), limits_.readout);
    }
    if (form_.tail == kda::TailForm::factored || form_.tail == kda::TailForm::factored_late) tail();
  }

 private:
  const double* row(std::size_t i) const { return chunk_.G + i * chunk_.channels; }
  Place at(std::size_t i, std::size_t k) const {
    Place place = chunk_.at;
    place.row = i, place.channel = k;
    return place;
  }

  /// Of a factor that the form may clamp.
  double clamped_limit() const { return clamp_ > limits_.overflow ? limits_.overflow : never; }

  void scores(std::size_t anchor_rows) {
    if (kda::is_pairwise(form_.decay)) {
      pairs(0, chunk_.rows);
      if (form_.decay == DecayForm::pair_late) masked_pairs();
      return;
    }
    const bool counts_from_start = form_.decay == DecayForm::factored || form_.decay == DecayForm::reciprocal;
    for (std::size_t from = 0; from < chunk_.rows; from += anchor_rows) {
      const std::size_t to = std::min(from + anchor_rows, chunk_.rows);
      const double* anchor = counts_from_start && from > 0 ? row(from - 1) : row(from);
      if (counts_from_start && from == 0) anchor = start_.data();
      if (from > 0) {
        factors(Side::left, from, to, anchor, clamped_limit());
        factors(Side::right, 0, from, anchor, clamped_limit());
      }
      if (form_.decay == DecayForm::anchor_pair) {
        pairs(from, to);
        continue;
      }
      if (form_.decay == DecayForm::anchor_mid) anchor = row(from + std::min(anchor_rows / 2, to - from - 1));
      std::vector<double> bound(anchor, anchor + chunk_.channels);
      if (form_.decay == DecayForm::anchor_bound) {
        for (double& a : bound) a += (form_.anchor_rows - 1) * chunk_.lower_bound / 2;
        anchor = bound.data();
      }
      factors(Side::left, from, to, anchor, clamped_limit());
      factors(Side::right, from, to, anchor, clamped_limit());
      diagonal(from, to, anchor);
    }
  }

  void tail() {
    factors(Side::tail, 0, chunk_.rows, start_.data(), clamped_limit());
    const double* const end = row(chunk_.rows - 1);
    for (std::size_t i = 0; i < chunk_.rows; ++i)
      for (std::size_t k = 0; k < chunk_.channels; ++k) {
        const double G = row(i)[k];
        if (-G <= clamp_) continue;
        range_.clamped_excess = std::max(range_.clamped_excess, (-G - clamp_) / ln2);
        range_.weight_error.note(std::fabs(numeric::exp(end[k] - G) - numeric::exp(end[k] + clamp_)),
                                 at(i, k));
      }
  }

  void note(Side side, std::size_t i, std::size_t k, double exponent, double limit) {
    if (exponent > range_.largest.value) range_.largest = {exponent, at(i, k)}, range_.side = side;
    if (exponent > limit && !range_.overflow) range_.overflow = at(i, k);
  }

  void factors(Side side, std::size_t from, std::size_t to, const double* anchor, double limit) {
    const double sign = side == Side::left || side == Side::readout ? 1 : -1;
    for (std::size_t i = from; i < to; ++i)
      for (std::size_t k = 0; k < chunk_.channels; ++k)
        note(side, i, k, sign * (row(i)[k] - anchor[k]), limit);
  }

  /// One exponential for each unmasked pair among rows [from, to): positive only where gates grow.
  void pairs(std::size_t from, std::size_t to) {
    std::vector<double> low(row(from), row(from) + chunk_.channels);
    for (std::size_t i = from + 1; i < to; ++i)
      for (std::size_t k = 0; k < chunk_.channels; ++k) {
        note(Side::left, i, k, row(i)[k] - low[k], limits_.pair);
        low[k] = std::min(low[k], row(i)[k]);
      }
  }

  void masked_pairs() {
    std::vector<double> high(row(0), row(0) + chunk_.channels);
    for (std::size_t j = 1; j < chunk_.rows; ++j)
      for (std::size_t k = 0; k < chunk_.channels; ++k) {
        range_.masked.note(high[k] - row(j)[k], at(j, k));
        high[k] = std::max(high[k], row(j)[k]);
      }
  }

  /// What becomes of the weights of rows [from, to) with each other.
  void diagonal(std::size_t from, std::size_t to, const double* anchor) {
    // Left of the diagonal what is lost is below the normals too.
    const bool reaches_below = -clamp_ < limits_.smallest_normal - 1e-9;
    for (std::size_t k = 0; k < chunk_.channels; ++k) {
      double reach = 0;
      for (std::size_t i = from; i < to; ++i) {
        reach = std::max(reach, std::fabs(row(i)[k] - anchor[k]));
        if (reaches_below && reach > -limits_.smallest_normal && !range_.lost) range_.lost = at(i, k);
      }
      if (reach > clamp_) clamped(from, to, k, anchor[k], reach);
    }
  }

  /// Beyond the clamp the two factors no longer multiply to exp(G_i - G_j).
  void clamped(std::size_t from, std::size_t to, std::size_t k, double anchor, double reach) {
    range_.clamped_excess = std::max(range_.clamped_excess, (reach - clamp_) / ln2);
    const auto exponent = [&](std::size_t i) { return row(i)[k] - anchor; };
    for (std::size_t i = from; i < to; ++i)
      for (std::size_t j = from; j <= i; ++j) {
        const double left = std::clamp(exponent(i), -clamp_, clamp_);
        const double right = std::clamp(-exponent(j), -clamp_, clamp_);
        const double error = numeric::exp(left + right) - numeric::exp(exponent(i) - exponent(j));
        range_.weight_error.note(std::fabs(error), at(i, k));
      }
  }

  const ChunkGates& chunk_;
  const kda::Arithmetic& form_;
  const FactorLimits& limits_;
  ExponentRange& range_;
  const double clamp_;  ///< natural log
  const std::vector<double> start_;
};

}  // namespace

void ExponentRange::merge(const ExponentRange& later) {
  if (later.largest.value > largest.value) side = later.side;
  largest.note(later.largest);
  if (!overflow) overflow = later.overflow;
  masked.note(later.masked);
  if (!lost) lost = later.lost;
  clamped_excess = std::max(clamped_excess, later.clamped_excess);
  weight_error.note(later.weight_error);
}

FactorLimits factor_limits(bool is_double, const kda::CastPoints& casts) {
  const Range whole = range_of(is_double, Rounding::none), factor = range_of(is_double, casts.exponentials),
              operand = range_of(is_double, casts.score_operands),
              readout = range_of(is_double, casts.operands);
  return {numeric::log(std::min(factor.infinite, operand.infinite)),
          numeric::log(std::max(factor.normal, operand.normal)), numeric::log(whole.infinite),
          numeric::log(std::min(factor.infinite, readout.infinite))};
}

void scan_exponents(const ChunkGates& chunk, const kda::Arithmetic& form, std::size_t anchor_rows,
                    const FactorLimits& limits, ExponentRange& range) {
  Scan(chunk, form, limits, range).run(anchor_rows);
}

}  // namespace kda_check::explain

#include "compare/comparison.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/parallel.hpp"
#include "numeric/rounding.hpp"
#include "numeric/ulp.hpp"

namespace kda_check::compare {

namespace {

using numeric::DoubleDouble;

constexpr std::size_t piece = 512;  // elements looked at together
constexpr std::size_t listed_mismatches = 8;

ValueClass class_of(double x) {
  if (std::isfinite(x)) return ValueClass::finite;
  if (std::isnan(x)) return ValueClass::nan;
  return x > 0 ? ValueClass::positive_infinity : ValueClass::negative_infinity;
}

bool before(const Point& a, const Point& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.element < b.element;
}

}  // namespace

std::size_t DistanceHistogram::bin_of(std::uint64_t distance) {
  if (distance < 32) return static_cast<std::size_t>(distance);
  const auto octave = static_cast<std::size_t>(std::bit_width(distance)) - 6;  // 32..63 is octave 0
  const auto within = static_cast<std::size_t>(distance >> (octave + 1)) - per_octave;
  return 32 + octave * per_octave + within;
}

double DistanceHistogram::lower_end(std::size_t bin) {
  if (bin < 32) return static_cast<double>(bin);
  const std::size_t octave = (bin - 32) / per_octave, within = (bin - 32) % per_octave;
  return std::ldexp(static_cast<double>(per_octave + within), static_cast<int>(octave) + 1);
}

double DistanceHistogram::percentile(double share) const {
  std::uint64_t total = 0;
  for (const std::uint64_t count : bins_) total += count;
  const double wanted = share * static_cast<double>(total);
  std::uint64_t seen = 0;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += bins_[bin];
    if (seen > 0 && static_cast<double>(seen) >= wanted) return lower_end(bin);
  }
  return 0;
}

std::vector<std::uint64_t> DistanceHistogram::by_power_of_two() const {
  std::vector<std::uint64_t> counts;
  for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
    if (bins_[bin] == 0) continue;
    int exponent = 0;
    if (bin > 0) std::frexp(lower_end(bin), &exponent);
    counts.resize(std::max(counts.size(), static_cast<std::size_t>(exponent) + 1));
    counts[static_cast<std::size_t>(exponent)] += bins_[bin];
  }
  return counts;
}

std::size_t Measures::mismatched_classes() const {
  std::size_t count = 0;
  for (std::size_t got = 0; got < class_count; ++got)
    for (std::size_t expected = 0; expected < class_count; ++expected)
      if (got != expected) count += classes[got][expected];
  return count;
}

Comparison::Comparison(std::string_view name, const tensor::Tensor& got, bool state_v_first,
                       bool has_magnitude, const ComparisonOptions& options)
    : got_(got), has_magnitude_(has_magnitude), options_(options) {
  const tensor::Shape& shape = got.shape();
  const kda::TensorSpec* const spec = kda::find_spec(name);
  run_ = std::max<std::size_t>(1, got.size());
  row_stride_ = run_;
  if (spec != nullptr && spec->rank == shape.size() && !got.empty()) {
    const auto axes = kda::stored_axes(*spec, state_v_first);
    std::size_t stride = got.size();
    for (std::size_t axis = 0; axis < spec->rank; ++axis) {
      if (axis == 0 && spec->rank > 1) row_stride_ = stride / shape[0];
      stride /= shape[axis];
      const bool is_head = axes[axis] == kda::Axis::head || axes[axis] == kda::Axis::value_head;
      if (axes[axis] == kda::Axis::token)
        has_tokens_ = true, tokens_ = shape[axis], token_stride_ = run_ = stride;
      if (is_head && spec->rank > 1) has_heads_ = true, heads_ = shape[axis], head_stride_ = run_ = stride;
    }
  }
  windows_per_row_ = has_tokens_ ? (tokens_ + window_tokens - 1) / window_tokens : 1;
  const std::size_t rows = got.empty() ? 0 : got.size() / row_stride_;
  cells_.resize(rows * windows_per_row_ * heads_);
  if (options.series && has_tokens_ && !got.empty())
    series_ = {rows, tokens_, heads_, std::vector<TokenErrors>(got.size() / run_)};
  parts_.resize(static_cast<std::size_t>(std::max(1, options.threads)));
}

void Comparison::keep_worst(std::vector<Point>& worst, const Point& point) const {
  if (worst.size() == options_.worst && (worst.empty() || !before(point, worst.back()))) return;
  worst.insert(std::upper_bound(worst.begin(), worst.end(), point, before), point);
  if (worst.size() > options_.worst) worst.pop_back();
}

template <class Storage>
void Comparison::add_run(std::size_t begin, std::size_t count, const ExpectedValues& expected, Measures& m,
                         Cell& cell) {
  constexpr const numeric::Format& format = numeric::format_for<Storage>;
  const Storage* const elements = got_.elements<Storage>().data() + begin;
  TokenErrors* const token = token_errors(begin);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = begin + i;
    const double got = numeric::widen(elements[i]);
    const DoubleDouble exact{expected.hi[i], expected.lo[i]};
    if (options_.against_oracle && !std::isfinite(exact.hi)) {
      ++m.undecided;
      continue;
    }
    const Storage rounded = numeric::round_to<Storage>(exact);
    const double nearest = numeric::widen(rounded);
    const auto got_class = class_of(got), expected_class = class_of(nearest);
    ++m.classes[static_cast<std::size_t>(got_class)][static_cast<std::size_t>(expected_class)];
    m.got_all_zero = m.got_all_zero && got == 0;
    m.expected_all_zero = m.expected_all_zero && exact.hi == 0;
    if (got_class != ValueClass::finite || expected_class != ValueClass::finite) {
      if (got_class != expected_class) {
        ++m.differing, ++m.differing_bits;
        if (m.class_mismatches.size() < listed_mismatches)
          m.class_mismatches.push_back({at, got, exact, 0, 0});
        if (token != nullptr) token->take(HUGE_VAL, 0, HUGE_VAL, at % run_);
      }
      continue;
    }
    ++m.finite;
    const DoubleDouble apart = numeric::two_sum(got, -exact.hi);
    const double signed_difference = apart.hi + (apart.lo - exact.lo),
                 difference = std::fabs(signed_difference);
    const double size = std::fabs(exact.hi);
    cell.difference2 += difference * difference;
    cell.expected2 += size * size;
    cell.product += signed_difference * exact.hi;
    const std::uint64_t distance = numeric::ulp_distance(elements[i], rounded);
    m.distances.add(distance);
    if (distance != 0) ++m.differing;
    if (distance != 0 || std::signbit(got) != std::signbit(nearest)) ++m.differing_bits;
    if (difference == 0) {
      if (token != nullptr) token->take(0, size, 0, at % run_);
      continue;
    }
    const int exponent = numeric::exponent_of(exact);
    Point point{at, got, exact, 0, static_cast<double>(distance)};
    if (has_magnitude_) {
      point.magnitude = expected.magnitude[i];
      point.rank = difference / numeric::unit_in_last_place(
                                    format, std::max(exponent, numeric::exponent_of(point.magnitude)));
      m.scaled_ulp.take(point.rank, point);
    }
    m.max_ulp.take(static_cast<double>(distance), point);
    m.max_abs.take(difference, point);
    m.max_rel.take(difference / size, point);
    m.ulp_error.take(difference / numeric::unit_in_last_place(format, exponent), point);
    const double excess = difference - (options_.atol + options_.rtol * size);
    if (!(excess <= 0)) {
      ++m.outside;
      m.worst_excess.take(excess, point);
    }
    keep_worst(m.worst, point);
    if (token != nullptr) token->take(difference, size, has_magnitude_ ? point.rank : 0, at % run_);
  }
}

/// Calls body(task cell row) in parallel; a row of cells is one task and its runs are visited in order.
template <class Body>
void Comparison::over_runs(std::size_t begin, std::size_t count, Body body) {
  struct Task {
    std::size_t begin, end, cell_row;
  };
  std::vector<Task> tasks;
  const std::size_t end = begin + count;
  for (std::size_t at = begin; at < end;) {
    const std::size_t row = at / row_stride_, row_end = (row + 1) * row_stride_;
    const std::size_t window = has_tokens_ ? at % row_stride_ / token_stride_ / window_tokens : 0;
    const std::size_t window_end =
        has_tokens_ ? row * row_stride_ + (window + 1) * window_tokens * token_stride_ : row_end;
    const std::size_t stop = std::min({end, row_end, window_end});
    tasks.push_back({at, stop, row * windows_per_row_ + window});
    at = stop;
  }
  parallel_for(tasks.size(), options_.threads, [&](std::size_t item, int worker) {
    const Task& task = tasks[item];
    for (std::size_t at = task.begin; at < task.end;) {
      const std::size_t run_end = std::min(task.end, (at / run_ + 1) * run_);
      const std::size_t stop = std::min(run_end, at + piece);
      const std::size_t head = has_heads_ ? at / head_stride_ % heads_ : 0;
      body(at, stop - at, parts_[static_cast<std::size_t>(worker)], cells_[task.cell_row * heads_ + head]);
      at = stop;
    }
  });
}

void Comparison::add(std::size_t begin, std::size_t count, const ExpectedValues& expected) {
  numeric::visit_storage(got_.dtype(), [&](auto tag) {
    over_runs(begin, count, [&](std::size_t at, std::size_t length, Measures& part, Cell& cell) {
      const std::size_t offset = at - begin;
      add_run<decltype(tag)>(at, length,
                             {expected.hi + offset, expected.lo + offset,
                              expected.magnitude == nullptr ? nullptr : expected.magnitude + offset},
                             part, cell);
    });
  });
}

void Comparison::add_all(const tensor::Tensor& expected) {
  numeric::visit_storage(got_.dtype(), [&](auto got_tag) {
    numeric::visit_storage(expected.dtype(), [&](auto expected_tag) {
      const auto* const elements = expected.elements<decltype(expected_tag)>().data();
      over_runs(0, got_.size(), [&](std::size_t at, std::size_t length, Measures& part, Cell& cell) {
        double hi[piece], lo[piece] = {};
        for (std::size_t i = 0; i < length; ++i) hi[i] = numeric::widen(elements[at + i]);
        add_run<decltype(got_tag)>(at, length, {hi, lo, nullptr}, part, cell);
      });
    });
  });
}

Measures Comparison::finish() {
  Measures total;
  total.has_magnitude = has_magnitude_;
  total.elements = got_.size();
  for (const Measures& part : parts_) {
    total.finite += part.finite;
    total.undecided += part.undecided;
    total.differing += part.differing;
    total.differing_bits += part.differing_bits;
    total.outside += part.outside;
    total.got_all_zero = total.got_all_zero && part.got_all_zero;
    total.expected_all_zero = total.expected_all_zero && part.expected_all_zero;
    for (std::size_t got = 0; got < class_count; ++got)
      for (std::size_t expected = 0; expected < class_count; ++expected)
        total.classes[got][expected] += part.classes[got][expected];
    for (Extreme Measures::*const extreme : {&Measures::max_ulp, &Measures::ulp_error, &Measures::scaled_ulp,
                                             &Measures::max_abs, &Measures::max_rel, &Measures::worst_excess})
      (total.*extreme).merge(part.*extreme);
    total.distances.merge(part.distances);
    total.worst.insert(total.worst.end(), part.worst.begin(), part.worst.end());
    total.class_mismatches.insert(total.class_mismatches.end(), part.class_mismatches.begin(),
                                  part.class_mismatches.end());
  }
  std::sort(total.worst.begin(), total.worst.end(), before);
  if (total.worst.size() > options_.worst) total.worst.resize(options_.worst);
  std::sort(total.class_mismatches.begin(), total.class_mismatches.end(),
            [](const Point& a, const Point& b) { return a.element < b.element; });
  if (total.class_mismatches.size() > listed_mismatches) total.class_mismatches.resize(listed_mismatches);

  const auto ratio = [](const Cell& cell) {
    if (cell.difference2 == 0) return 0.0;
    return cell.expected2 == 0 ? HUGE_VAL : std::sqrt(cell.difference2 / cell.expected2);
  };
  const auto add = [](Cell& sum, const Cell& cell) {
    sum.difference2 += cell.difference2;
    sum.expected2 += cell.expected2;
    sum.product += cell.product;
  };
  Cell whole;
  std::vector<Cell> heads(heads_);
  for (std::size_t row = 0; row * heads_ < cells_.size(); ++row) {
    Cell window;
    for (std::size_t head = 0; head < heads_; ++head) {
      add(window, cells_[row * heads_ + head]);
      add(heads[head], cells_[row * heads_ + head]);
    }
    add(whole, window);
    if (has_tokens_ && (ratio(window) > total.window_rms_ratio || total.window_token == no_element)) {
      total.window_rms_ratio = ratio(window);
      total.window_batch = row / windows_per_row_;
      total.window_token = row % windows_per_row_ * window_tokens;
    }
  }
  for (std::size_t head = 0; has_heads_ && head < heads_; ++head)
    if (ratio(heads[head]) > total.head_rms_ratio || total.worst_head == no_element) {
      total.head_rms_ratio = ratio(heads[head]);
      total.worst_head = head;
    }
  total.rms_ratio = ratio(whole);
  total.bias = whole.expected2 == 0 ? 0 : whole.product / whole.expected2;
  return total;
}

}  // namespace kda_check::compare

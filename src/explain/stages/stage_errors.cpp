#include "explain/stages/stage_errors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/interruption.hpp"
#include "judge/measures/comparison.hpp"
#include "numeric/double_double_functions.hpp"
#include "numeric/elementary.hpp"
#include "numeric/product_sum.hpp"
#include "numeric/ulp.hpp"

namespace kda_check::explain {

namespace {

using kda::ChunkPlace;
using kda::Stage;
using numeric::DoubleDouble;

constexpr DoubleDouble reciprocal_of_ln2{0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56};

std::size_t number_of(Stage stage) { return static_cast<std::size_t>(stage); }

bool is_scaled(Stage stage, const StagesOfAnswer& answer) {
  return stage == Stage::g_cumsum && answer.g_cumsum_in_powers_of_two;
}

/// The truth in the units of an answer.
DoubleDouble truth_of(Stage stage, const StagesOfAnswer& answer, const kda::StageTruth& truth,
                      std::size_t element) {
  const DoubleDouble exact{truth.hi[element], truth.lo[element]};
  return is_scaled(stage, answer) ? exact * reciprocal_of_ln2 : exact;
}
double magnitude_of(Stage stage, const StagesOfAnswer& answer, const kda::StageTruth& truth,
                    std::size_t element) {
  return truth.magnitude[element] * (is_scaled(stage, answer) ? reciprocal_of_ln2.hi : 1.0);
}

/// Calls body(place, row, column, element) for every element of a stage that counts, chunks of all heads in
/// order of time.
class StageWalk {
 public:
  StageWalk(const kda::Problem& problem, std::size_t chunk_size)
      : problem_(problem), d_(kda::chunked_dimensions(problem, chunk_size)) {
    for (const kda::Sequence& s : problem.sequences()) {
      const std::size_t first = kda::first_chunk(problem, s, chunk_size);
      for (std::size_t begin = s.begin; begin < s.end; begin += chunk_size)
        places_.push_back(
            {s.batch, begin, std::min(chunk_size, s.end - begin), first + (begin - s.begin) / chunk_size, 0});
    }
  }

  const std::vector<kda::ChunkPlace>& chunks() const { return places_; }

  /// Stops and returns true as soon as body does. Throws Interrupted.
  template <class Body>
  bool over_chunk(kda::Stage stage, const kda::ChunkPlace& chunk, const Body& body) const {
    const kda::StageLayout layout(stage, d_, problem_.options.state_v_first);
    const bool triangular = kda::row_of(stage).lower_triangular();
    kda::ChunkPlace place = chunk;
    check_interruption();
    for (place.head = 0; place.head < d_.HV; ++place.head)
      for (std::size_t row = 0; row < layout.rows(place); ++row)
        for (std::size_t column = 0; column < (triangular ? row + 1 : layout.columns(place)); ++column)
          if (body(place, row, column, layout.element(place, row, column))) return true;
    return false;
  }

 private:
  const kda::Problem& problem_;
  const kda::Dimensions d_;
  std::vector<kda::ChunkPlace> places_;
};

StageError error_of(Stage stage, const StagesOfAnswer& answer, const kda::StageTruths& truths,
                    const StageWalk& walk, bool state_v_first, int threads) {
  const tensor::Tensor& got = (*answer.tensors)[number_of(stage)];
  const kda::StageTruth& truth = truths[number_of(stage)];
  tensor::Tensor masked(got.name(), got.dtype(), got.shape());
  std::memset(masked.data(), 0, masked.bytes());
  std::vector<double> hi(got.size(), 0.0), lo(got.size(), 0.0), magnitude(got.size(), 0.0);
  const std::size_t bytes = numeric::format_of(got.dtype()).bytes;
  StageError result{stage, got.dtype(), {}, 0};
  numeric::ProductSum value2, magnitude2;
  for (const ChunkPlace& chunk : walk.chunks())
    walk.over_chunk(stage, chunk, [&](const ChunkPlace&, std::size_t, std::size_t, std::size_t element) {
      std::memcpy(masked.at(element), got.at(element), bytes);
      const DoubleDouble exact = truth_of(stage, answer, truth, element);
      hi[element] = exact.hi;
      lo[element] = exact.lo;
      magnitude[element] = magnitude_of(stage, answer, truth, element);
      if (std::isfinite(exact.hi)) {
        value2.add_square(exact.hi);
        magnitude2.add_square(magnitude[element]);
      }
      return false;
    });
  judge::ComparisonOptions options;
  options.threads = threads;
  options.against_oracle = true;
  judge::Comparison comparison(kda::row_of(stage).name, masked, state_v_first, true, options);
  comparison.add(0, got.size(), {hi.data(), lo.data(), magnitude.data()});
  result.measures = comparison.finish();
  result.cancelled_bits = value2.is_zero() ? 0 : numeric::log2(root_of_quotient(magnitude2, value2));
  return result;
}

/// |difference| in units in the last place of the larger of magnitude and value; infinite where `got` alone
/// is not finite. Where the truth itself is not finite there is nothing to leave.
double units(double got, double difference, double expected, double magnitude, numeric::DType dtype) {
  if (!std::isfinite(expected)) return 0;
  if (!std::isfinite(got)) return HUGE_VAL;
  const int exponent = numeric::exponent_of(std::max(magnitude, std::fabs(expected)));
  return std::fabs(difference) / numeric::unit_in_last_place(numeric::format_of(dtype), exponent);
}

template <class Off>
std::optional<Divergence> first_where(const StageWalk& walk, const Off& off) {
  std::optional<Divergence> found;
  const auto in_chunk = [&](const ChunkPlace& chunk, bool backward) {
    for (const kda::StageRow& row : kda::stages(kda::Passes::both)) {
      if (row.backward != backward) continue;
      const auto beyond = [&](const ChunkPlace& place, std::size_t r, std::size_t c, std::size_t element) {
        const std::optional<Divergence> here = off(row.stage, element);
        if (!here || here->scaled_ulp <= here->limit) return false;
        found = here;
        found->chunk = place;
        found->row = r;
        found->column = c;
        return true;
      };
      if (walk.over_chunk(row.stage, chunk, beyond)) return true;
    }
    return false;
  };
  for (const ChunkPlace& chunk : walk.chunks())
    if (in_chunk(chunk, false)) return found;
  const std::vector<ChunkPlace>& chunks = walk.chunks();
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk)
    if (in_chunk(*chunk, true)) return found;
  return found;
}

}  // namespace

std::vector<StageError> stage_errors(const StagesOfAnswer& answer, const kda::StageTruths& truths,
                                     const kda::Problem& problem, std::size_t chunk_size, int threads) {
  const StageWalk walk(problem, chunk_size);
  std::vector<StageError> errors;
  for (const kda::StageRow& row : kda::stages(kda::Passes::both))
    if (!(*answer.tensors)[number_of(row.stage)].empty())
      errors.push_back(error_of(row.stage, answer, truths, walk, problem.options.state_v_first, threads));
  return errors;
}

std::optional<Divergence> first_divergence(const StagesOfAnswer& answer, const kda::StageTruths& truths,
                                           const kda::Problem& problem, std::size_t chunk_size,
                                           const StageLimit& limit) {
  const auto off = [&](Stage stage, std::size_t element) -> std::optional<Divergence> {
    const tensor::Tensor& got = (*answer.tensors)[number_of(stage)];
    if (got.empty()) return std::nullopt;
    const DoubleDouble exact = truth_of(stage, answer, truths[number_of(stage)], element);
    const double value = got.value(element);
    return Divergence{stage,
                      {},
                      0,
                      0,
                      value,
                      exact.hi,
                      units(value, (value - exact.hi) - exact.lo, exact.hi,
                            magnitude_of(stage, answer, truths[number_of(stage)], element), got.dtype()),
                      limit(stage, got.dtype())};
  };
  return first_where(StageWalk(problem, chunk_size), off);
}

std::optional<Divergence> first_divergence(const StagesOfAnswer& answer, const StagesOfAnswer& other,
                                           const kda::StageTruths& truths, const kda::Problem& problem,
                                           std::size_t chunk_size, const StageLimit& limit) {
  const auto in_natural_units = [](Stage stage, const StagesOfAnswer& whose, double value) {
    return is_scaled(stage, whose) ? value / reciprocal_of_ln2.hi : value;
  };
  const auto off = [&](Stage stage, std::size_t element) -> std::optional<Divergence> {
    const tensor::Tensor &a = (*answer.tensors)[number_of(stage)], &b = (*other.tensors)[number_of(stage)];
    if (a.empty() || b.empty()) return std::nullopt;
    const numeric::DType coarser =
        numeric::format_of(a.dtype()).precision < numeric::format_of(b.dtype()).precision ? a.dtype()
                                                                                          : b.dtype();
    const double x = in_natural_units(stage, answer, a.value(element));
    const double y = in_natural_units(stage, other, b.value(element));
    return Divergence{stage,
                      {},
                      0,
                      0,
                      x,
                      y,
                      units(x, x - y, y, truths[number_of(stage)].magnitude[element], coarser),
                      limit(stage, coarser)};
  };
  return first_where(StageWalk(problem, chunk_size), off);
}

}  // namespace kda_check::explain

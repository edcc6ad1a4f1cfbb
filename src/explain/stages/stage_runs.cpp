#include "explain/stages/stage_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "kda/arithmetic/tensor_core_limits.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::explain {

namespace {

using numeric::DType;

bool same_values(const tensor::Tensor& a, const tensor::Tensor& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a.value(i), y = b.value(i);
    if (x != y && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

void run_passes(const kda::Problem& problem, const kda::Variant& variant, const kda::RunOptions& options,
                kda::Passes passes) {
  variant.run(problem, options);
  if (passes == kda::Passes::both) variant.run_backward(problem, options);
}

/// What each stage makes of exact inputs: a run in which every stage is given exactly. Backwards too with
/// both `passes`, which `exact` must have then.
kda::StageTensors own_stages(const kda::Problem& problem, const kda::Variant& variant,
                             kda::RunOptions options, const kda::StageTensors& exact, kda::Passes passes) {
  kda::StageTensors own =
      kda::allocate_stages(problem, options.chunk_size, kda::state_dtype(options.dtype), passes);
  options.stages.computed = &own;
  options.stages.given = &exact;
  options.stages.use_given.fill(true);
  run_passes(problem, variant, options, passes);
  return own;
}

}  // namespace

StagedAnswer staged(const StageSetting& setting, const kda::Variant& variant, const kda::Variant* replay,
                    kda::RunOptions options) {
  const kda::Problem& problem = setting.problem;
  const DType arithmetic_dtype = kda::state_dtype(options.dtype);
  // Without a backward pass a variant tells the stages of the forward one.
  const bool tells_backward =
      variant.run_backward != nullptr &&
      kda::lacks_gradients(options.arithmetic, problem.dimensions().strength).empty() &&
      (!is_on_gpu(variant) || kda::gpu_lacks_gradients(options.arithmetic, problem.dimensions()).empty());
  const kda::Passes passes = tells_backward ? setting.passes : kda::Passes::forward;
  StagedAnswer answer;
  answer.compute = kda::compute_format(variant, options.dtype, options.arithmetic);
  answer.backward_compute = kda::compute_format(variant, options.dtype, options.arithmetic, true);
  answer.tensors = kda::allocate_stages(problem, setting.chunk_size, arithmetic_dtype, passes);
  answer.g_cumsum_in_powers_of_two = options.arithmetic.gates != kda::Gates::natural;
  options.stages.computed = &answer.tensors;
  run_passes(problem, variant, options, passes);
  const kda::CastPoints casts =
      kda::cast_points(options.arithmetic, options.dtype, problem.beta_is_16_bit(), true);
  store_as_rounded(answer.tensors, casts);
  options.stages = {};
  if (replay == nullptr) return answer;
  const kda::StageTensors exact =
      kda::rounded_stages(setting.truths, problem, setting.chunk_size, arithmetic_dtype);
  kda::StageTensors own = own_stages(problem, *replay, options, exact, passes);
  store_as_rounded(own, casts);
  answer.own = stage_errors({&own, answer.g_cumsum_in_powers_of_two}, setting.truths, problem,
                            setting.chunk_size, setting.threads);
  return answer;
}

// A stage shows single exponentials of running sums of gates, however small: n roundings of half a unit of
// sums up to S, n S / 2 units of exp, nothing of it forgotten. The sums themselves are as good as the format
// they are stored in, whatever the operands of products are, and so are recorded qg and kg: a tensor core
// cuts operands on their way in.
double agreement_limit(const StagedAnswer& answer, kda::Stage stage, DType storage,
                       const StageSetting& setting) {
  numeric::ComputeFormat compute = kda::row_of(stage).backward ? answer.backward_compute : answer.compute;
  const double half_chunk = std::max(1.0, static_cast<double>(setting.chunk_size) / 2);
  if (stage == kda::Stage::g_cumsum) return 1 + half_chunk;
  if (answer.recorded && (stage == kda::Stage::qg || stage == kda::Stage::kg))
    compute = numeric::compute_of(storage);
  const double units =
      judge::units_lost(compute, judge::Form::chunk, 0, setting.gates.largest_chunk_sum * half_chunk);
  for (const judge::Limit& limit : judge::derived_limits({compute, storage, units}))
    if (limit.metric == "scaled_ulp") return limit.value;
  return 0;
}

void store_as_rounded(kda::StageTensors& tensors, const kda::CastPoints& casts) {
  for (const kda::StageRow& row : kda::stages(kda::Passes::both)) {
    const kda::Rounding rounding = row.stored_as == nullptr ? kda::Rounding::none : casts.*row.stored_as;
    if (rounding != kda::Rounding::bf16 && rounding != kda::Rounding::fp16) continue;
    tensor::Tensor& tensor = tensors[static_cast<std::size_t>(row.stage)];
    if (tensor.empty()) continue;
    tensor::Tensor narrow = tensor.converted_to(rounding == kda::Rounding::bf16 ? DType::bf16 : DType::fp16);
    if (same_values(narrow, tensor)) tensor = std::move(narrow);
  }
}

std::string describe(const Divergence& d) {
  const kda::StageRow& stage = kda::row_of(d.stage);
  const std::string where = stage.shape == kda::StageShape::state
                                ? fmt::format("key {}, value {}", d.row, d.column)
                                : fmt::format("token {}, {} {}", d.chunk.begin + d.row,
                                              stage.lower_triangular() ? "column" : "channel", d.column);
  return fmt::format(
      "{}, chunk {} (b={} t={}..{}), h={}, {}: {:.9g} where {:.9g} is wanted, off by {:.3g} units > {:.3g}",
      stage.name, d.chunk.index, d.chunk.batch, d.chunk.begin, d.chunk.begin + d.chunk.rows - 1, d.chunk.head,
      where, d.got, d.expected, d.scaled_ulp, d.limit);
}

std::size_t stage_elements(const kda::Problem& problem, std::size_t chunk_size, kda::Passes passes) {
  const kda::Dimensions d = kda::chunked_dimensions(problem, chunk_size);
  std::size_t elements = 0;
  for (const kda::StageRow& row : kda::stages(passes))
    elements += tensor::element_count(
        kda::expected_shape(*kda::find_spec(row.name), d, problem.options.state_v_first));
  return elements;
}

std::size_t stage_bytes(const kda::Problem& problem, std::size_t chunk_size, kda::Passes passes) {
  return stage_elements(problem, chunk_size, passes) * (24 + 3 * 8);
}

void check_stage_memory(const kda::Problem& problem, std::size_t chunk_size, std::size_t budget,
                        kda::Passes passes) {
  const std::size_t bytes = stage_bytes(problem, chunk_size, passes);
  if (bytes > budget)
    throw Error(
        ErrorKind::input,
        fmt::format("stages and their truth take {}, the budget is {}", size_text(bytes), size_text(budget)),
        {}, "a shorter or narrower fixture, or --memory-limit");
}

}  // namespace kda_check::explain

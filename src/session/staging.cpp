#include "session/staging.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "compare/limits.hpp"
#include "compare/metrics.hpp"
#include "session/replay.hpp"
#include "session/selection.hpp"

namespace kda_check::session {

namespace {

using analysis::StagesOfAnswer;
using numeric::DType;

/// The stages of one answer, and what it takes to judge them.
struct StagedAnswer {
  report::StageCase result;
  numeric::ComputeFormat compute, backward_compute;
  kda::StageTensors tensors;
  bool g_cumsum_in_powers_of_two = false;
  std::vector<analysis::StageError> own;  ///< given exact inputs; empty when recorded

  StagesOfAnswer view() const { return {&tensors, g_cumsum_in_powers_of_two}; }
};

/// What the chunk form may lose in one element of a stage, in units of its magnitude. A stage shows single
/// exponentials of running sums of gates, however small: n roundings of half a unit of sums up to S, n S / 2
/// units of exp, nothing of it forgotten. The sums themselves are as good as the format they are stored in,
/// whatever the operands of products are, and so are recorded qg and kg: a tensor core cuts operands on their
/// way in.
double agreement_limit(const StagedAnswer& answer, kda::Stage stage, DType storage,
                       const StagingRequest& request) {
  numeric::ComputeFormat compute = kda::row_of(stage).backward ? answer.backward_compute : answer.compute;
  const double half_chunk = std::max(1.0, static_cast<double>(request.chunk_size) / 2);
  if (stage == kda::Stage::g_cumsum) return 1 + half_chunk;
  if (answer.result.recorded && (stage == kda::Stage::qg || stage == kda::Stage::kg))
    compute = numeric::compute_of(storage);
  kda::Regime regime = request.regime;
  regime.gate_rounding = regime.largest_chunk_sum * half_chunk;
  for (const compare::Limit& limit :
       compare::derived_limits({compute, storage, compare::Form::chunk}, std::nullopt, regime))
    if (limit.metric == "scaled_ulp") return limit.value;
  return 0;
}

double metric(const compare::Measures& measures, std::string_view name) {
  return compare::find_metric(name)->value(measures);
}

std::string place_of(const compare::Measures& measures, std::string_view stage, const tensor::Shape& shape,
                     bool state_v_first) {
  if (measures.scaled_ulp.point.element == compare::no_element) return {};
  return kda::place(stage, tensor::index_of(shape, measures.scaled_ulp.point.element), state_v_first);
}

void fill_rows(StagedAnswer& answer, const kda::StageTruths& truths, const kda::Problem& problem,
               const StagingRequest& request) {
  const std::vector<analysis::StageError> errors =
      analysis::stage_errors(answer.view(), truths, problem, request.chunk_size, request.threads);
  for (const analysis::StageError& error : errors) {
    report::StageRowResult row;
    row.name = kda::row_of(error.stage).name;
    row.dtype = numeric::name_of(error.dtype);
    row.rms_ratio = metric(error.measures, "rms_ratio");
    row.scaled_ulp = metric(error.measures, "scaled_ulp");
    row.max_ulp = metric(error.measures, "max_ulp");
    row.nonfinite = error.measures.mismatched_classes();
    row.compared = error.measures.finite;
    row.cancelled_bits = error.cancelled_bits;
    row.worst =
        place_of(error.measures, row.name, answer.tensors[static_cast<std::size_t>(error.stage)].shape(),
                 problem.options.state_v_first);
    for (const analysis::StageError& own : answer.own)
      if (own.stage == error.stage) {
        row.own_rms_ratio = metric(own.measures, "rms_ratio");
        row.own_scaled_ulp = metric(own.measures, "scaled_ulp");
      }
    row.limit = agreement_limit(answer, error.stage, error.dtype, request);
    answer.result.rows.push_back(std::move(row));
  }
  const auto limit = [&](kda::Stage stage, DType dtype) {
    return agreement_limit(answer, stage, dtype, request);
  };
  if (const auto found =
          analysis::first_divergence(answer.view(), truths, problem, request.chunk_size, limit))
    answer.result.divergence = describe(*found);
}

bool same_values(const tensor::Tensor& a, const tensor::Tensor& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a.value(i), y = b.value(i);
    if (x != y && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

/// The passes that a variant tells the stages of.
kda::Passes passes_of(const kda::Variant& variant, const StagingRequest& request) {
  return variant.run_backward == nullptr ? kda::Passes::forward : request.passes;
}

void run_passes(const kda::Problem& problem, const kda::Variant& variant, const kda::RunOptions& options,
                kda::Passes passes) {
  variant.run(problem, options);
  if (passes == kda::Passes::both) variant.run_backward(problem, options);
}

kda::RunOptions options_of(const kda::Variant& variant, const kda::Problem& problem, DType dtype,
                           const StagingRequest& request) {
  kda::RunOptions options =
      run_options(variant, problem, dtype, request.arithmetic, request.chunk_size, request.threads);
  options.memory_limit = request.memory_budget;
  return options;
}

StagedAnswer computed(const Source& source, const kda::Problem& problem, const kda::Variant& variant,
                      kda::RunOptions options, const StagingRequest& request,
                      const kda::StageTruths& truths) {
  const DType dtype = options.dtype;
  const DType arithmetic_dtype = kda::state_dtype(dtype);
  StagedAnswer answer;
  answer.result.fixture = source.name();
  answer.result.path = source.path();
  answer.result.answer = variant.name;
  answer.result.dtype = numeric::name_of(dtype);
  answer.compute = kda::compute_format(variant, dtype, options.arithmetic);
  answer.backward_compute = kda::compute_format(variant, dtype, options.arithmetic, true);
  answer.result.compute = numeric::row_of(answer.compute).name;
  answer.result.arithmetic = kda::describe(options.arithmetic, variant.axes);
  const kda::Passes passes = passes_of(variant, request);
  answer.tensors = kda::allocate_stages(problem, request.chunk_size, arithmetic_dtype, passes);
  options.stages.computed = &answer.tensors;
  run_passes(problem, variant, options, passes);
  const kda::CastPoints casts = kda::cast_points(options.arithmetic, dtype, problem.beta_is_16_bit(), true);
  store_as_rounded(answer.tensors, casts);

  // Once more with every stage given exactly: what each makes of exact inputs. No GPU takes stages from
  // elsewhere; its replay does.
  options.stages = {};
  if (!why_no_replay(variant, problem, options).empty()) return answer;
  const kda::StageTensors exact = kda::rounded_stages(truths, problem, request.chunk_size, arithmetic_dtype);
  kda::StageTensors own = own_stages(problem, on_cpu(variant), options, exact, passes);
  store_as_rounded(own, casts);
  answer.own = analysis::stage_errors({&own, false}, truths, problem, request.chunk_size, request.threads);
  return answer;
}

StagedAnswer recorded(const Source& source, const fixture::ExpectedGroup& group,
                      const StagingRequest& request) {
  StagedAnswer answer;
  answer.result.fixture = source.name();
  answer.result.path = source.path();
  answer.result.answer = group.name;
  answer.result.recorded = true;
  answer.compute = answer.backward_compute = group.compute_or_storage();
  answer.g_cumsum_in_powers_of_two = !group.natural_g_cumsum;
  answer.result.compute = numeric::row_of(answer.compute).name;
  answer.result.dtype = numeric::name_of(source.dtype());
  for (const kda::StageRow& row : kda::stages(request.passes))
    for (const fixture::DatasetInfo& info : group.stages)
      if (fixture::leaf(info.path) == row.name)
        answer.tensors[static_cast<std::size_t>(row.stage)] = source.read(info);
  return answer;
}

}  // namespace

void store_as_rounded(kda::StageTensors& tensors, const kda::CastPoints& casts) {
  using enum kda::Stage;
  const std::pair<kda::Stage, kda::Rounding> rounded[] = {{g_cumsum, casts.g_cumsum},
                                                          {Aqk, casts.Aqk},
                                                          {Akk_inv, casts.Akk_inv},
                                                          {u, casts.u},
                                                          {w, casts.w},
                                                          {qg, casts.operands},
                                                          {kg, casts.operands},
                                                          {h, casts.state},
                                                          {v_new, casts.v_new},
                                                          {dv_local, casts.dv_local},
                                                          {dh, casts.dh},
                                                          {dv, casts.dv},
                                                          {dw, casts.dw}};
  for (const auto& [stage, rounding] : rounded) {
    if (rounding != kda::Rounding::bf16 && rounding != kda::Rounding::fp16) continue;
    tensor::Tensor& tensor = tensors[static_cast<std::size_t>(stage)];
    if (tensor.empty()) continue;
    tensor::Tensor narrow = tensor.converted_to(rounding == kda::Rounding::bf16 ? DType::bf16 : DType::fp16);
    if (same_values(narrow, tensor)) tensor = std::move(narrow);
  }
}

std::string describe(const analysis::Divergence& d) {
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

void check_stage_memory(const kda::Problem& problem, std::size_t chunk_size, std::size_t budget,
                        kda::Passes passes) {
  const kda::Dimensions d = kda::chunked_dimensions(problem, chunk_size);
  std::size_t elements = 0;
  for (const kda::StageRow& row : kda::stages(passes))
    elements += tensor::element_count(
        kda::expected_shape(*kda::find_spec(row.name), d, problem.options.state_v_first));
  const std::size_t bytes = elements * (24 + 3 * 8);
  if (bytes > budget)
    throw Error(
        ErrorKind::input,
        fmt::format("stages and their truth take {} MiB, the budget is {} MiB", bytes >> 20, budget >> 20),
        {}, "a shorter or narrower fixture, or --memory-limit");
}

std::vector<report::StageCase> stage_cases(const Source& source, const kda::Problem& problem,
                                           const StagingRequest& request, bool with_recorded) {
  check_stage_memory(problem, request.chunk_size, request.memory_budget, request.passes);
  const kda::StageTruths truths =
      kda::run_stage_oracle(problem, request.chunk_size, request.threads, request.passes);
  std::vector<StagedAnswer> answers;
  for (const DType dtype : request.dtypes)
    for (const kda::Variant* const variant : request.variants) {
      const kda::RunOptions options = options_of(*variant, problem, dtype, request);
      if (variant->axes.chunk && why_not(*variant, problem, options).empty())
        answers.push_back(computed(source, problem, *variant, options, request, truths));
    }
  const std::size_t of_file = static_cast<std::size_t>(problem.options.chunk_size);
  if (with_recorded && request.chunk_size == of_file)
    for (const fixture::ExpectedGroup& group : source.expected())
      if (!group.stages.empty()) answers.push_back(recorded(source, group, request));
  for (StagedAnswer& answer : answers) fill_rows(answer, truths, problem, request);
  std::vector<report::StageCase> cases;
  for (StagedAnswer& answer : answers) {
    for (const StagedAnswer& other : answers) {
      if (answer.result.recorded || !other.result.recorded) continue;
      const auto limit = [&](kda::Stage stage, DType dtype) {
        return agreement_limit(answer, stage, dtype, request) + agreement_limit(other, stage, dtype, request);
      };
      const auto found =
          analysis::first_divergence(answer.view(), other.view(), truths, problem, request.chunk_size, limit);
      answer.result.disagreements.push_back(
          fmt::format("expected/{}: {}", other.result.answer,
                      found ? "first disagrees at " + describe(*found)
                            : "every stage agrees within what both formats may lose"));
    }
    cases.push_back(answer.result);
  }
  return cases;
}

}  // namespace kda_check::session

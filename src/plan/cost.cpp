#include "plan/cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "base/hash.hpp"
#include "base/version.hpp"

namespace kda_check::plan {

namespace {

using kda::Pass;
using numeric::DType;

/// Microseconds for a token of one value head with K = V = 128, on one thread (docs/performance.md).
struct Speed {
  std::string_view variant;
  double fp32, fp64;  ///< forwards; 16-bit dtypes compute in fp32
  double backward;    ///< times as long
};
constexpr double chunk_microseconds = 4.2;
constexpr Speed speeds[] = {
    {"naive", 2.7, 5.4, 4.5},
    {"recurrent", 2.7, 5.4, 4.5},
    {"chunk", chunk_microseconds, 2 * chunk_microseconds, 4},
    {"gpu-recurrent", 0.15, 0.3, 4},
    {"gpu-chunk", 0.15, 0.3, 4},
};
constexpr double oracle_forward = 28, oracle_backward = 180, oracle_fp64 = 6, comparison = 1.8;
constexpr double oracle_on_gpu = 0.2, gradient_oracle_on_gpu = 2;
constexpr double exact_sums = 30, tensor_core_sums = 9;  ///< a run with such sums over a plain one
constexpr double split_products = 6;                     ///< over other products of a tensor core
constexpr double sequence_microseconds = 1;  ///< of a value head in a run, however short: its state, its job
constexpr double map_runs = 1.4;  ///< forward runs that the map of a part takes; backwards there are two
constexpr double per_problem = 3e-3, per_case = 5e-4;  ///< opening, allocating; limits, writing rows
constexpr double law_runs = 4;                         ///< answers that trying one law takes
constexpr double identity_seconds = 6;                 ///< on cuts, whatever the size
constexpr double power_answers =
    100;  ///< with faults, held against the twins; two of them take a comparison's time
constexpr double twin_runs = 6;  ///< of the chunk form, what comparing them takes included
constexpr double twins_of_family = 20;

double token_heads(const kda::Outline& problem) {
  const kda::Dimensions& d = problem.dimensions;
  return static_cast<double>(d.B * d.T * d.HV) * static_cast<double>(d.K * d.V) / (128 * 128);
}

/// Of one run, or of so many that take that long together.
double seconds_for(const kda::Outline& problem, double microseconds, double runs = 1) {
  const auto sequences = static_cast<double>(problem.dimensions.N * problem.dimensions.HV);
  return (token_heads(problem) * microseconds + sequences * runs * sequence_microseconds) * 1e-6;
}

}  // namespace

double run_seconds(const Answer& answer, const kda::Outline& problem, Pass pass) {
  if (!answer.is_computed()) return answer.origin == Answer::Origin::external ? 1 : 0;
  double microseconds = 2;
  for (const Speed& speed : speeds)
    if (speed.variant == answer.variant->name) {
      const double parts = answer.options.arithmetic.segments.parts,
                   maps = map_runs * (1 - 1 / parts) * (pass == Pass::backward ? 2 : 1);
      microseconds = answer.dtype == DType::fp64 ? speed.fp64 : speed.fp32;
      microseconds *= (pass == Pass::backward ? speed.backward : 1) + maps;
    }
  if (is_on_gpu(*answer.variant)) return seconds_for(problem, microseconds);  // whose sums cost what they do
  const kda::Reduction& reduction = answer.options.arithmetic.reduction;
  if (reduction.kind == kda::ReductionKind::exact) microseconds *= exact_sums;
  if (kda::has_tensor_cores(reduction)) microseconds *= tensor_core_sums;
  if (reduction.kind == kda::ReductionKind::split) microseconds *= split_products;
  return seconds_for(problem, microseconds);
}

double oracle_seconds(const kda::Outline& problem, Pass pass, const Request& asked) {
  const OracleChoice choice = asked.oracle_or_usual();
  if (choice == OracleChoice::none) return 0;
  if (asked.oracle_device_for(problem.dimensions, pass) == kda::OracleDevice::gpu)
    return seconds_for(problem, pass == Pass::backward ? gradient_oracle_on_gpu : oracle_on_gpu);
  const double whole = pass == Pass::backward ? oracle_backward : oracle_forward;
  const bool in_fp64 = choice == OracleChoice::fp64 || asked.begins_in_fp64(problem.dimensions, pass);
  return seconds_for(problem, in_fp64 ? oracle_fp64 : whole);
}

double twin_seconds(const kda::Outline& problem, Pass pass) {
  return seconds_for(problem, twin_runs * chunk_microseconds * (pass == Pass::backward ? 4 : 1),
                     twins_of_family);
}

double steps_of_run(const kda::Outline& problem) {
  const kda::Dimensions& d = problem.dimensions;
  return static_cast<double>(d.B * d.T * d.HV * d.V);
}

double steps_in(double seconds, const kda::Outline& problem) {
  return seconds / seconds_for(problem, chunk_microseconds) * steps_of_run(problem);
}

double seconds_of(const Case& item, const Problem& problem) {
  if (!item.skip.empty() || !item.answer) return 0;
  const kda::Outline& outline = problem.outline;
  const double run = run_seconds(problem.answers[*item.answer], outline, item.pass);
  switch (item.question) {
    case Question::verdict:
      if (item.reference.kind == Reference::Kind::law)
        return law_runs * (run + seconds_for(outline, comparison));
      return seconds_for(outline, comparison) +
             (item.reference.kind == Reference::Kind::replay ? 2 * run : 0);
    case Question::stages:
      return 3 * run + seconds_for(outline, 2 * oracle_forward);
    case Question::power:
      return seconds_for(outline,
                         oracle_forward + twin_runs * chunk_microseconds + power_answers * comparison);
    case Question::identity:
      if (item.reference.kind != Reference::Kind::answer) return identity_seconds;
      return 2 * identity_seconds + run +
             run_seconds(problem.answers[item.reference.answer], outline, item.pass);
    case Question::overflow:  // the gates and keys, the form itself and some that are in doubt
      return 3 * run + seconds_for(outline, 2 * comparison);
    case Question::faults:
    case Question::growth:
    case Question::capture:
      break;
  }
  return seconds_for(outline, 2 * comparison);
}

double seconds_of(const Problem& problem) {
  double seconds = per_problem;
  std::set<std::pair<std::size_t, Pass>> answers;
  std::map<std::tuple<Pass, OracleChoice, std::size_t>, const Request*> truths;
  std::set<std::pair<DType, Pass>> twins;
  for (const Case& item : problem.cases) {
    seconds += item.seconds + per_case;
    if (!item.skip.empty() || !item.answer || item.question == Question::overflow ||
        item.question == Question::power || item.question == Question::identity)
      continue;
    answers.emplace(*item.answer, item.pass);
    if (item.has_twins()) twins.emplace(problem.answers[*item.answer].dtype, item.pass);
    truths.emplace(std::tuple(item.pass, item.asked->oracle_or_usual(),
                              item.pass == Pass::backward ? item.chunk_size(problem.outline) : 0),
                   item.asked.get());
  }
  for (const auto& [answer, pass] : answers)
    seconds += run_seconds(problem.answers[answer], problem.outline, pass);
  for (const auto& [dtype, pass] : twins) seconds += twin_seconds(problem.outline, pass);
  for (const auto& [truth, asked] : truths)
    seconds += oracle_seconds(problem.outline, std::get<Pass>(truth), *asked);
  return seconds;
}

std::size_t answer_bytes(const kda::Outline& problem, Pass pass, DType dtype) {
  std::size_t bytes = 0;
  for (const std::string& name : kda::tensors_of(pass, problem))
    bytes += tensor::element_count(kda::expected_shape(*kda::find_spec(name), problem.dimensions,
                                                       problem.options.state_v_first)) *
             numeric::format_of(kda::dtype_of(name, problem, dtype)).bytes;
  return bytes;
}

TwinBytes twin_bytes(const Problem& problem, Pass pass, bool on_gpu) {
  // In fp32: the fourteen rows of a kernel of any form, and what is read of them. In 16 bits up to sixteen,
  // which take half, and four fields of directions. A GPU keeps them to itself, computes the next family
  // while one is measured and leaves sums: where it fails, the CPU has them.
  constexpr std::size_t fields = 16;
  const std::size_t families = on_gpu ? 2 : 1;
  const std::size_t heads = problem.outline.dimensions.H;
  TwinBytes bytes{0, problem.source->bytes() / heads};
  for (const std::string& name : kda::tensors_of(pass, problem.outline)) {
    const kda::TensorSpec& spec = *kda::find_spec(name);
    const tensor::Shape shape =
        kda::expected_shape(spec, problem.outline.dimensions, problem.outline.options.state_v_first);
    if (shape.size() < 3) continue;  // parameters have no twins
    const std::size_t elements = tensor::element_count(shape), width = shape.size() < 4 ? 1
                                                                       : spec.is_state
                                                                           ? problem.outline.dimensions.V
                                                                           : shape[3];
    bytes.kept += elements / width * fields * 2 * sizeof(float);  // two sums of each row
    bytes.per_head += elements / heads * families * fields * sizeof(float);
    (pass == Pass::backward ? bytes.kept : bytes.per_head) +=
        elements / (pass == Pass::backward ? 1 : heads) * sizeof(double);
  }
  return bytes;
}

std::size_t bytes_of(const Problem& problem) {
  std::set<std::pair<std::size_t, Pass>> answers;
  for (const Case& item : problem.cases)
    if (item.skip.empty() && item.answer) {
      answers.emplace(*item.answer, item.pass);
      if (item.reference.kind == Reference::Kind::answer) answers.emplace(item.reference.answer, item.pass);
    }
  std::size_t bytes = problem.source->bytes() * (problem.rounded_to ? 2 : 1);
  for (const Pass pass : kda::every_pass) {
    std::size_t heads = 0;  // with twins, at once: on a GPU all, if they fit
    bool any_on_gpu = false;
    for (const Case& item : problem.cases) {
      if (!item.skip.empty() || item.pass != pass || !item.has_twins()) continue;
      const bool on_gpu =
          pass == Pass::forward &&
          item.asked->oracle_device_for(problem.outline.dimensions, pass) == kda::OracleDevice::gpu;
      heads = std::max<std::size_t>(heads, on_gpu ? problem.outline.dimensions.H : 1);
      any_on_gpu = any_on_gpu || on_gpu;
    }
    const TwinBytes of_twins = twin_bytes(problem, pass, any_on_gpu);
    if (heads > 0) bytes += of_twins.kept + heads * of_twins.per_head;
  }
  for (const auto& [answer, pass] : answers)
    bytes += answer_bytes(problem.outline, pass, problem.answers[answer].dtype);
  return bytes;
}

namespace {

/// Limits by what they are: where they come from may be called otherwise elsewhere.
void add_judging(Hash& hash, const Case& item) {
  hash.add(std::string(name_of(item.asked->oracle_or_usual())));
  for (const std::vector<judge::LimitLayer>& layers : item.limits)
    for (const judge::LimitLayer& layer : layers)
      for (const judge::LimitRequest& limit : layer.requests)
        hash.add(fmt::format("{} {:a} {} {}", limit.metric, limit.value, limit.none, limit.exact));
  const plan::Judging& judging = item.asked->judging;
  for (const std::optional<double>& bound : {judging.atol, judging.rtol, judging.floor})
    hash.add(bound ? fmt::format("{:a}", *bound) : std::string());
  if (judging.undecided) hash.add(std::string(judge::name_of(*judging.undecided)));
  if (judging.as_declared) hash.add("as declared");
}

}  // namespace

std::string digest_of(const Plan& plan) {
  Hash hash;
  hash.add(version);
  for (const Problem& problem : plan.problems) {
    hash.add(problem.source->target().name);
    hash.add(fmt::format("{:x}", problem.source->fingerprint()));
    hash.add(shape_text(problem.outline.dimensions) + " " + options_text(problem.outline) + problem.remark());
    for (const Case& item : problem.cases) {
      hash.add(item.who + " " + std::string(name_of(item.question)) + " " + item.reference.name + " " +
               std::string(kda::name_of(item.pass)) + " " + item.asked->place);
      if (item.answer && problem.answers[*item.answer].is_computed()) {
        const Answer& answer = problem.answers[*item.answer];
        hash.add(kda::describe(answer.options.arithmetic, answer.variant->axes));
        hash.add(std::to_string(answer.options.chunk_size) + " " +
                 std::string(numeric::name_of(answer.dtype)));
      }
      if (item.asked->external)
        hash.add(fmt::format("{} {}", item.asked->external->command, item.asked->external->seconds));
      for (const std::string& tensor : item.tensors) hash.add(tensor);
      if (!item.asked->has_test()) hash.add("no test");
      add_judging(hash, item);
    }
  }
  return hash.text();
}

}  // namespace kda_check::plan

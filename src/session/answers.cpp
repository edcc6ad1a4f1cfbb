#include "session/answers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.hpp"
#include "compare/comparison.hpp"
#include "compare/tolerances.hpp"
#include "numeric/rounding.hpp"
#include "session/judging.hpp"
#include "session/profile.hpp"

namespace kda_check::session {

namespace {

using compare::Comparison;
using tensor::Tensor;

/// One tensor of one pairing while the oracle runs.
struct Ongoing {
  std::size_t pairing;
  std::string tensor;
  const Tensor* got;
  const Tensor* expected;  ///< null: the oracle
  std::unique_ptr<Comparison> comparison;
  double cancellation = 1;
  double chunk_excess = 0;
};

/// How many times larger the errors of a gradient's terms are than what is left of the terms
/// (docs/limits.md).
double cancellation_of(kda::Gradient gradient, const kda::GradientTruth& truth, std::size_t K) {
  const double spread = compare::ratio_of_sizes(truth.spread, truth.hi);
  // A product of two sums over K, whose terms err independently as well.
  if (gradient == kda::Gradient::dbeta) return 1 + spread / std::sqrt(static_cast<double>(K));
  return std::max(1.0, spread);
}

void widen_range(const Tensor& tensor, std::size_t begin, std::size_t count, std::vector<double>& values) {
  values.resize(count);
  numeric::visit_storage(tensor.dtype(), [&](auto tag) {
    const auto elements = tensor.elements<decltype(tag)>();
    for (std::size_t i = 0; i < count; ++i) values[i] = numeric::widen(elements[begin + i]);
  });
}

/// Feeds elements [begin, begin + count) of one tensor to every comparison of that tensor.
class Feeder {
 public:
  explicit Feeder(std::vector<Ongoing>& ongoing) : ongoing_(ongoing) {}

  void feed(std::string_view tensor, std::size_t begin, std::size_t count,
            const compare::ExpectedValues& oracle) {
    for (Ongoing& item : ongoing_) {
      if (item.tensor != tensor) continue;
      if (item.expected == nullptr) {
        item.comparison->add(begin, count, oracle);
      } else {
        widen_range(*item.expected, begin, count, values_);
        zeros_.assign(count, 0.0);
        item.comparison->add(begin, count, {values_.data(), zeros_.data(), oracle.magnitude});
      }
    }
  }

 private:
  std::vector<Ongoing>& ongoing_;
  std::vector<double> values_, zeros_;
};

bool both_recur(const Pairing& pairing) {
  const auto recurs = [](const Answered& answer) { return answer.form == compare::Form::recurrence; };
  return recurs(*pairing.got) && (pairing.expected == nullptr || recurs(*pairing.expected));
}

/// Which of two magnitudes of a gradient a pairing is measured by (kda/gradient_oracle.hpp): that of the
/// recurrence where no side is another form.
const std::vector<double>& magnitude_for(const kda::GradientTruth& truth, const Pairing& pairing) {
  return both_recur(pairing) || truth.chunk_magnitude.empty() ? truth.magnitude : truth.chunk_magnitude;
}

void compare_gradients(const kda::Problem& problem, const std::vector<Pairing>& pairings,
                       std::vector<Ongoing>& ongoing, const CompareRequest& request) {
  check_gradient_memory(problem, request.threads, request.memory_budget,
                        "--no-backward compares the forward pass only");
  const kda::GradientTruths truths =
      kda::run_gradient_oracle(problem, *request.oracle, request.chunk_size, request.threads);
  std::vector<double> values, zeros;
  for (Ongoing& item : ongoing)
    for (const kda::GradientRow& row : kda::gradients()) {
      if (row.name != item.tensor) continue;
      const kda::GradientTruth& truth = truths[static_cast<std::size_t>(row.gradient)];
      const std::size_t count = item.got->size();
      compare::ExpectedValues expected{truth.hi.data(), truth.lo.data(),
                                       magnitude_for(truth, pairings[item.pairing]).data()};
      if (item.expected != nullptr) {
        widen_range(*item.expected, 0, count, values);
        zeros.assign(count, 0.0);
        expected.hi = values.data(), expected.lo = zeros.data();
      }
      item.comparison->add(0, count, expected);
      item.cancellation = cancellation_of(row.gradient, truth, problem.dimensions().K);
      item.chunk_excess = compare::ratio_of_sizes(truth.chunk_magnitude, truth.magnitude);
    }
}

void run_comparisons(const kda::Problem& problem, const std::vector<Pairing>& pairings,
                     std::vector<Ongoing>& ongoing, const CompareRequest& request) {
  if (!request.oracle) {
    for (Ongoing& item : ongoing) {
      item.comparison->add_all(*item.expected);
      const bool over_tokens = item.tensor == "dA_log" || item.tensor == "ddt_bias";
      if (over_tokens) item.cancellation = HUGE_VAL;  // the oracle's to know
    }
    return;
  }
  if (pairings[ongoing.front().pairing].got->gradients)
    return compare_gradients(problem, pairings, ongoing, request);
  const kda::Dimensions& d = problem.dimensions();
  Feeder feeder(ongoing);
  kda::OracleSink sink;
  sink.output = [&](const kda::OracleOutput& block) {
    const std::size_t row = d.HV * d.V;
    feeder.feed("o", (block.batch * d.T + block.begin) * row, block.count * row,
                {block.hi, block.lo, block.magnitude});
  };
  sink.state = [&](const kda::OracleState& state) {
    const std::size_t size = d.K * d.V;
    feeder.feed("final_state", (state.sequence * d.HV + state.head) * size, size,
                {state.hi, state.lo, state.magnitude});
  };
  kda::run_oracle(problem, *request.oracle, request.threads, sink);
}

/// o and dv are sums over K of independent terms, dq, dk, dg and dbeta sums over V.
double smallness_of(std::string_view name, const Tensor& tensor, const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  if (name == "o" || name == "dv") return compare::smallness_of_sums(tensor.size(), d.K);
  const bool over_values = name == "dq" || name == "dk" || name == "dg" || name == "dbeta";
  return over_values ? compare::smallness_of_sums(tensor.size(), d.V) : 1.0;
}

compare::Computation computation_of(const Answered& answer, const Ongoing& item, const Tensor& tensor,
                                    const kda::Problem& problem) {
  return {answer.compute,    tensor.dtype(),
          answer.form,       smallness_of(item.tensor, tensor, problem),
          item.cancellation, answer.form == compare::Form::recurrence ? 0 : item.chunk_excess};
}

std::vector<compare::Limit> limits_for(const Pairing& pairing, const Ongoing& item,
                                       const kda::Problem& problem, const CompareRequest& request) {
  if (pairing.same_bits) return compare::replay_limits();
  const auto regime_of = [&](const Answered& answer) {
    return answer.recorded ? request.recorded_regime.value_or(request.regime) : request.regime;
  };
  const compare::Computation got = computation_of(*pairing.got, item, *item.got, problem);
  if (item.expected == nullptr) return compare::derived_limits(got, std::nullopt, regime_of(*pairing.got));
  return compare::derived_limits(got, computation_of(*pairing.expected, item, *item.expected, problem),
                                 regime_of(*pairing.got), regime_of(*pairing.expected));
}

}  // namespace

const Tensor* Answered::tensor(std::string_view tensor_name) const {
  if (gradients) {
    for (const kda::GradientRow& row : kda::gradients())
      if (row.name == tensor_name) {
        const Tensor& held = (*gradients)[static_cast<std::size_t>(row.gradient)];
        return held.empty() ? nullptr : &held;
      }
  }
  if (tensor_name != "o" && tensor_name != "final_state") return nullptr;
  const std::optional<Tensor>& held = tensor_name == "o" ? o : final_state;
  return held ? &*held : nullptr;
}

void Answered::hold(std::string_view tensor_name, Tensor tensor) {
  for (const kda::GradientRow& row : kda::gradients())
    if (row.name == tensor_name) {
      if (!gradients) gradients.emplace();
      (*gradients)[static_cast<std::size_t>(row.gradient)] = std::move(tensor);
      return;
    }
  (tensor_name == "o" ? o : final_state) = std::move(tensor);
}

namespace {

Answered described(const kda::Variant& variant, const kda::RunOptions& options, bool backward) {
  Answered result;
  result.name = variant.name;
  result.device = kda::device_of(variant);
  result.arithmetic = kda::describe(options.arithmetic, variant.axes);
  result.dtype = options.dtype;
  result.compute = kda::compute_format(variant, options.dtype, options.arithmetic, backward);
  result.form = variant.axes.chunk ? compare::Form::chunk : compare::Form::recurrence;
  return result;
}

}  // namespace

Answered computed_answer(const kda::Variant& variant, const kda::RunOptions& options, kda::Answer answer) {
  Answered result = described(variant, options, false);
  result.o = std::move(answer.o);
  result.final_state = std::move(answer.final_state);
  return result;
}

Answered computed_gradients(const kda::Variant& variant, const kda::RunOptions& options,
                            kda::GradientTensors gradients) {
  Answered result = described(variant, options, true);
  result.gradients = std::move(gradients);
  return result;
}

std::vector<Answered> recorded_answers(const Source& file, const std::vector<std::string>& tensors) {
  std::vector<Answered> list;
  for (const fixture::ExpectedGroup& group : file.expected()) {
    Answered answer;
    answer.name = group.name;
    answer.recorded = true;
    answer.device = group.device;
    answer.arithmetic = group.implementation;
    answer.compute = group.compute_or_storage();
    answer.dtype = group.tensor("o") != nullptr ? *group.tensor("o")->dtype : file.dtype();
    for (const std::string& name : tensors)
      if (const fixture::DatasetInfo* const info = group.tensor(name)) answer.hold(name, file.read(*info));
    list.push_back(std::move(answer));
  }
  return list;
}

std::vector<Measured> measured(const kda::Problem& problem, const std::vector<Pairing>& pairings,
                               const CompareRequest& request) {
  const bool v_first = problem.options.state_v_first;
  std::vector<Ongoing> ongoing;
  for (std::size_t i = 0; i < pairings.size(); ++i)
    for (const std::string& name : request.tensors) {
      const Tensor* const got = pairings[i].got->tensor(name);
      const Tensor* const expected =
          pairings[i].expected != nullptr ? pairings[i].expected->tensor(name) : nullptr;
      if (got == nullptr || (pairings[i].expected != nullptr && expected == nullptr)) continue;
      compare::ComparisonOptions options = comparison_options(request.judging, request.threads);
      options.against_oracle = expected == nullptr;
      options.series = options.series || request.series;
      ongoing.push_back(
          {i, name, got, expected,
           std::make_unique<Comparison>(name, *got, v_first, request.oracle.has_value(), options)});
    }
  if (!ongoing.empty()) run_comparisons(problem, pairings, ongoing, request);

  std::vector<Measured> results;
  for (Ongoing& item : ongoing) {
    const Pairing& pairing = pairings[item.pairing];
    results.push_back({item.pairing, item.tensor, item.got, item.comparison->finish(),
                       item.comparison->take_series(), limits_for(pairing, item, problem, request)});
    Measured& last = results.back();
    const auto drop = [&](std::string_view metric) {
      std::erase_if(last.limits, [&](const compare::Limit& limit) { return limit.metric == metric; });
    };
    // What cancels to zero everywhere, dg of single tokens, is judged by its magnitude: nothing has a ratio
    // to it. The chunk form makes the initial state's gradient of other terms than the recurrence, whose
    // magnitude it has.
    if (pairing.got->gradients && last.measures.has_magnitude && last.measures.expected_all_zero)
      drop("rms_ratio");
    else if (item.tensor == "dinitial_state" && !both_recur(pairing))
      drop("scaled_ulp");
  }
  return results;
}

std::vector<report::CaseResult> compared(const kda::Problem& problem, const std::vector<Pairing>& pairings,
                                         const CompareRequest& request) {
  std::vector<report::CaseResult> cases;
  for (const Pairing& pairing : pairings)
    cases.push_back(
        case_about(*pairing.got, pairing.expected != nullptr ? pairing.expected->name : "oracle"));
  for (Measured& item : measured(problem, pairings, request)) {
    report::CaseResult& of = cases[item.pairing];
    if (request.judging.tolerances)
      item.limits = request.judging.tolerances->applied(
          std::move(item.limits),
          {request.fixture, of.variant, of.dtype, of.against, item.tensor, item.got->dtype()});
    compare::JudgeOptions options;
    options.zeros_decide = item.tensor == "dq" && !problem.output_gradient;  // zero by definition
    report::TensorResult result = judged(item.tensor, *item.got, problem.options.state_v_first, item.measures,
                                         std::move(item.limits), request.judging, options);
    if (request.judging.profile) result.profile = profile_of(item.measures, item.series);
    of.tensors.push_back(std::move(result));
  }
  for (report::CaseResult& item : cases) {
    if (item.tensors.empty()) {
      item.verdict = compare::Verdict::skipped;
      item.reason = "holds none of the tensors compared";
    }
    conclude(item);
  }
  return cases;
}

report::CaseResult case_about(const Answered& got, std::string against) {
  report::CaseResult result;
  result.variant = got.name;
  result.recorded = got.recorded;
  result.dtype = numeric::name_of(got.dtype);
  result.device = got.device;
  result.pass = got.gradients ? "backward" : "forward";
  result.arithmetic = got.arithmetic;
  result.compute = numeric::row_of(got.compute).name;
  result.against = std::move(against);
  return result;
}

void check_gradient_memory(const kda::Problem& problem, int threads, std::size_t budget,
                           const std::string& hint) {
  const double bytes = kda::gradient_oracle_bytes(problem, threads);
  if (bytes <= static_cast<double>(budget)) return;
  throw Error(ErrorKind::input,
              fmt::format("the truth of the gradients takes {:.3g} GB; the memory budget is {:.3g} GB",
                          bytes * 1e-9, static_cast<double>(budget) * 1e-9),
              {}, hint);
}

std::string oracle_name(const std::optional<kda::OraclePrecision>& oracle) {
  if (!oracle) return "none";
  return *oracle == kda::OraclePrecision::fp64 ? "fp64" : "double-double";
}

}  // namespace kda_check::session

#include "engine/comparing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::engine {

namespace {

using judge::Comparison;
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
  const double spread = judge::ratio_of_sizes(truth.spread, truth.hi);
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
            const judge::ExpectedValues& oracle) {
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
  const auto recurs = [](const Answered& answer) { return answer.form == judge::Form::recurrence; };
  return recurs(*pairing.got) && (pairing.expected == nullptr || recurs(*pairing.expected));
}

/// Which of two magnitudes of a gradient a pairing is measured by (kda/gradient_oracle.hpp): that of the
/// recurrence where no side is another form.
const std::vector<double>& magnitude_for(const kda::GradientTruth& truth, const Pairing& pairing) {
  return both_recur(pairing) || truth.chunk_magnitude.empty() ? truth.magnitude : truth.chunk_magnitude;
}

void compare_gradients(const Truth& truth, const std::vector<Pairing>& pairings,
                       std::vector<Ongoing>& ongoing, Twins& twins) {
  const kda::Problem& problem = truth.problem;
  check_gradient_memory(problem, truth.threads, truth.memory_budget,
                        "--no-backward compares the forward pass only; --memory-limit raises it");
  const kda::GradientTruths truths =
      kda::run_gradient_oracle(problem, *truth.oracle, truth.chunk_size, truth.threads);
  std::vector<double> values, zeros;
  for (Ongoing& item : ongoing)
    for (const kda::GradientRow& row : kda::gradients()) {
      if (row.name != item.tensor) continue;
      const kda::GradientTruth& exact = truths[static_cast<std::size_t>(row.gradient)];
      const std::size_t count = item.got->size();
      judge::ExpectedValues expected{exact.hi.data(), exact.lo.data(),
                                     magnitude_for(exact, pairings[item.pairing]).data()};
      if (item.expected != nullptr) {
        widen_range(*item.expected, 0, count, values);
        zeros.assign(count, 0.0);
        expected.hi = values.data(), expected.lo = zeros.data();
      }
      item.comparison->add(0, count, expected);
      item.cancellation = cancellation_of(row.gradient, exact, problem.dimensions().K);
      item.chunk_excess = judge::ratio_of_sizes(exact.chunk_magnitude, exact.magnitude);
    }
  for (const kda::GradientRow& row : kda::gradients())
    if (const std::vector<double>& hi = truths[static_cast<std::size_t>(row.gradient)].hi; !hi.empty())
      twins.truth(row.name, hi.size(), 0, hi);
  twins.judge();
}

void run_comparisons(const Truth& truth, const std::vector<Pairing>& pairings, std::vector<Ongoing>& ongoing,
                     Twins& twins) {
  if (!truth.oracle) {
    for (Ongoing& item : ongoing) {
      item.comparison->add_all(*item.expected);
      const bool over_tokens = item.tensor == "dA_log" || item.tensor == "ddt_bias";
      if (over_tokens) item.cancellation = HUGE_VAL;  // the oracle's to know
    }
    return;
  }
  if (truth.pass == kda::Pass::backward) return compare_gradients(truth, pairings, ongoing, twins);
  const kda::Dimensions& d = truth.problem.dimensions();
  Feeder feeder(ongoing);
  kda::OracleSink sink;
  sink.output = [&](const kda::OracleOutput& block) {
    const std::size_t row = d.HV * d.V, begin = (block.batch * d.T + block.begin) * row,
                      count = block.count * row;
    feeder.feed("o", begin, count, {block.hi, block.lo, block.magnitude});
    twins.truth("o", d.B * d.T * row, begin, {block.hi, count});
  };
  sink.state = [&](const kda::OracleState& state) {
    const std::size_t size = d.K * d.V, begin = (state.sequence * d.HV + state.head) * size;
    feeder.feed("final_state", begin, size, {state.hi, state.lo, state.magnitude});
    twins.truth("final_state", d.N * d.HV * size, begin, {state.hi, size});
  };
  kda::run_oracle(truth.problem, *truth.oracle, truth.threads, sink);
  twins.judge();
}

/// o and dv are sums over K of independent terms, dq, dk, dg and dbeta sums over V.
double smallness_of(std::string_view name, const Tensor& tensor, const kda::Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  if (name == "o" || name == "dv") return judge::smallness_of_sums(tensor.size(), d.K);
  const bool over_values = name == "dq" || name == "dk" || name == "dg" || name == "dbeta";
  return over_values ? judge::smallness_of_sums(tensor.size(), d.V) : 1.0;
}

judge::Computation computation_of(const Answered& answer, const Ongoing& item, const Tensor& tensor,
                                  const kda::Problem& problem) {
  return {answer.compute,    tensor.dtype(),
          answer.form,       smallness_of(item.tensor, tensor, problem),
          item.cancellation, answer.form == judge::Form::recurrence ? 0 : item.chunk_excess};
}

std::vector<judge::Limit> limits_for(const Truth& truth, const Pairing& pairing, const Ongoing& item) {
  if (pairing.same_bits) return judge::replay_limits();
  const auto& gates_of = [&](const Answered& answer) -> const kda::GateStatistics& {
    return truth.gates(answer.chunk_size);
  };
  const judge::Computation got = computation_of(*pairing.got, item, *item.got, truth.problem);
  if (item.expected == nullptr) return judge::derived_limits(got, std::nullopt, gates_of(*pairing.got));
  return judge::derived_limits(got, computation_of(*pairing.expected, item, *item.expected, truth.problem),
                               gates_of(*pairing.got), gates_of(*pairing.expected));
}

void drop(std::vector<judge::Limit>& limits, std::string_view metric) {
  std::erase_if(limits, [&](const judge::Limit& limit) { return limit.metric == metric; });
}

}  // namespace

std::vector<Measured> measured(const Truth& truth, const std::vector<Pairing>& pairings) {
  const bool v_first = truth.problem.options.state_v_first;
  std::vector<Ongoing> ongoing;
  for (std::size_t i = 0; i < pairings.size(); ++i)
    for (const std::string& name : pairings[i].tensors) {
      const Tensor* const got = pairings[i].got->tensor(name);
      const Tensor* const expected =
          pairings[i].expected != nullptr ? pairings[i].expected->tensor(name) : nullptr;
      judge::ComparisonOptions options = pairings[i].options;
      options.against_oracle = expected == nullptr;
      options.threads = truth.threads;
      ongoing.push_back(
          {i, name, got, expected,
           std::make_unique<Comparison>(name, *got, v_first, truth.oracle.has_value(), options)});
    }
  Twins twins(truth.problem, truth.pass, truth.threads);
  if (truth.oracle)
    for (const Pairing& pairing : pairings)
      if (pairing.twins && pairing.expected == nullptr) twins.add(*pairing.got);
  if (!ongoing.empty()) run_comparisons(truth, pairings, ongoing, twins);

  std::vector<Measured> results;
  for (Ongoing& item : ongoing) {
    const Pairing& pairing = pairings[item.pairing];
    Measured& last = results.emplace_back(Measured{item.pairing,
                                                   item.tensor,
                                                   item.got,
                                                   item.comparison->finish(),
                                                   item.comparison->take_series(),
                                                   limits_for(truth, pairing, item),
                                                   {}});
    // What cancels to zero everywhere, dg of single tokens, is judged by its magnitude: nothing has a ratio
    // to it. The chunk form makes the initial state's gradient of other terms than the recurrence, whose
    // magnitude it has.
    if (truth.pass == kda::Pass::backward && last.measures.has_magnitude && last.measures.expected_all_zero)
      drop(last.limits, "rms_ratio");
    else if (item.tensor == "dinitial_state" && !both_recur(pairing))
      drop(last.limits, "scaled_ulp");
    if (pairing.twins && pairing.expected == nullptr)
      if (const TwinResult* const found = twins.result(*pairing.got, item.tensor)) last.twins = *found;
    last.judging.zeros_decide = item.tensor == "dq" && !truth.problem.output_gradient;  // zero by definition
  }
  return results;
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

}  // namespace kda_check::engine

#include "bench/accuracy.hpp"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "judge/measures/comparison.hpp"

namespace kda_check::bench {

namespace {

/// One tensor of an answer.
struct Held {
  Held(const char* name, const tensor::Tensor& got, bool state_v_first, int threads, double& the_error)
      : comparison(name, got, state_v_first, true, {.worst = 0, .threads = threads, .against_oracle = true}),
        error(&the_error) {}
  judge::Comparison comparison;
  double* error;
};

}  // namespace

void measure_errors(std::span<Contestant> contestants, const kda::Problem& problem,
                    const kda::OracleOptions& oracle, int threads) {
  const kda::Dimensions& d = problem.dimensions();
  std::vector<std::shared_ptr<const kda::Tensors>> answers;
  std::vector<std::unique_ptr<Held>> outputs, states;
  for (Contestant& contestant : contestants) {
    if (contestant.problem != &problem || !contestant.answer) continue;
    const kda::Tensors& tensors = *answers.emplace_back(contestant.answer());
    const auto hold = [&](const char* name, double& error, std::vector<std::unique_ptr<Held>>& list) {
      if (const auto found = tensors.find(name); found != tensors.end())
        list.push_back(
            std::make_unique<Held>(name, found->second, problem.options.state_v_first, threads, error));
    };
    hold("o", contestant.row.output_error, outputs);
    hold("final_state", contestant.row.state_error, states);
  }
  if (answers.empty()) return;
  kda::OracleSink sink;
  sink.output = [&](const kda::OracleOutput& out) {
    const std::size_t row = d.HV * d.V;
    for (const auto& held : outputs)
      held->comparison.add((out.batch * d.T + out.begin) * row, out.count * row,
                           {out.hi, out.lo, out.magnitude});
  };
  sink.state = [&](const kda::OracleState& state) {
    for (const auto& held : states)
      held->comparison.add((state.row * d.HV + state.head) * d.K * d.V, d.K * d.V,
                           {state.hi, state.lo, state.magnitude});
  };
  kda::run_oracle(problem, oracle, threads, sink);
  for (auto* const list : {&outputs, &states})
    for (const auto& held : *list) {
      // An element of another class, as NaN for a number, is in no mean.
      const judge::Measures measures = held->comparison.finish();
      *held->error = measures.mismatched_classes() > 0 ? HUGE_VAL : measures.rms_ratio;
    }
}

}  // namespace kda_check::bench

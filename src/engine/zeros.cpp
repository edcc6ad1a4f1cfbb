#include "engine/zeros.hpp"

#include <algorithm>

#include "kda/bounds/zero_pattern.hpp"

namespace kda_check::engine {

namespace {

bool is_zero(const double* values, std::size_t count) {
  return std::all_of(values, values + count, [](double x) { return x == 0; });
}

std::vector<std::string> zero_tensors(const Truth& truth) {
  const kda::Problem problem = kda::of_same_zeros(truth.problem);
  const kda::Dimensions& d = problem.dimensions();
  std::vector<std::string> names;
  kda::OracleOptions options = truth.oracle.value_or(kda::OraclePrecision::fp64);
  options.precision = kda::OraclePrecision::fp64;
  if (truth.pass == kda::Pass::backward) {
    const kda::GradientTruths truths =
        kda::run_gradient_oracle(problem, options, truth.chunk_size, truth.threads);
    for (const kda::GradientRow& row : kda::gradients()) {
      const tensor::Unfilled& values = truths[static_cast<std::size_t>(row.gradient)].hi;
      if (is_zero(values.data(), values.size())) names.emplace_back(row.name);
    }
    return names;
  }
  bool output = true, state = true;
  kda::OracleSink sink;
  sink.output = [&](const kda::OracleOutput& block) {
    output = output && is_zero(block.hi, block.count * d.HV * d.V);
  };
  sink.state = [&](const kda::OracleState& block) { state = state && is_zero(block.hi, d.K * d.V); };
  kda::run_oracle(problem, options, truth.threads, sink);
  if (output) names.emplace_back("o");
  if (state) names.emplace_back("final_state");
  return names;
}

}  // namespace

bool Zeros::exact(std::string_view tensor) {
  if (!names_) names_ = zero_tensors(truth_);
  return std::ranges::find(*names_, tensor) != names_->end();
}

}  // namespace kda_check::engine

#include "kda/bounds/log_decays.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kda/head/head_io.hpp"

namespace kda_check::kda {

namespace {

/// Evaluates the gates of all heads in T; as g is stored.
template <class T>
void evaluate_gates(const Problem& problem, std::span<T> values) {
  const Dimensions& d = problem.dimensions();
  const HeadReader<T> reader(problem);
  constexpr std::size_t most = 64;
  const std::size_t stride = padded(d.decays());
  std::vector<T> rows(most * stride);
  for (const Sequence& s : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head)
      for (std::size_t begin = 0; begin < s.length(); begin += most) {
        const std::size_t count = std::min(most, s.length() - begin);
        reader.own_log_decays({s, head, s.begin + begin, count}, rows.data(), stride);
        for (std::size_t t = 0; t < count; ++t)
          std::copy_n(&rows[t * stride], d.decays(),
                      &values[((s.batch * d.T + s.begin + begin + t) * d.HV + head) * d.decays()]);
      }
}

}  // namespace

Problem with_log_decays(const Problem& problem, numeric::DType dtype) {
  Problem plain = clone(problem);
  plain.g = tensor::Tensor("g", dtype, problem.g.shape());
  plain.A_log.reset(), plain.dt_bias.reset();
  plain.options.gate = Gate::none, plain.options.lower_bound.reset(), plain.options.safe_gate = false;
  if (dtype == numeric::DType::fp64)
    evaluate_gates(problem, plain.g.elements<double>());
  else
    evaluate_gates(problem, plain.g.elements<float>());
  plain.validate();
  return plain;
}

Problem with_scaled_log_decays(const Problem& problem, const std::vector<DecayOf>& which, double factor) {
  const std::size_t HV = problem.dimensions().HV, decays = problem.dimensions().decays();
  Problem other = clone(problem);
  for (const auto& [head, channel] : which) {
    const std::size_t first = channel.value_or(0), last = channel ? first + 1 : decays;
    for (std::size_t row = head * decays; row < other.g.size(); row += HV * decays)
      for (std::size_t k = first; k < last; ++k) other.g.set(row + k, factor * problem.g.value(row + k));
  }
  return other;
}

std::optional<std::size_t> slowest_channel(const Problem& problem, std::size_t head) {
  const std::size_t HV = problem.dimensions().HV, decays = problem.dimensions().decays();
  std::vector<double> sums(decays, 0.0);
  for (std::size_t row = head * decays; row < problem.g.size(); row += HV * decays)
    for (std::size_t k = 0; k < decays; ++k) sums[k] += problem.g.value(row + k);
  std::optional<std::size_t> slowest;
  double most = -HUGE_VAL;
  for (std::size_t k = 0; k < decays; ++k)
    if (sums[k] < 0 && sums[k] > most) most = sums[k], slowest = k;
  return slowest;
}

const tensor::Tensor& tensor_of(const Answer& answer, std::string_view name) {
  return name == "o" ? answer.o : answer.final_state;
}

Answer answer_in_fp64(const Problem& problem, int threads) {
  Tensors results = results_in_fp64(Pass::forward, problem, threads);
  return {std::move(results.at("o")), std::move(results.at("final_state"))};
}

Tensors results_in_fp64(Pass pass, const Problem& problem, int threads) {
  const Variant& variant = variant_named("recurrent");
  RunOptions options;
  options.dtype = numeric::DType::fp64, options.threads = threads;
  options.arithmetic = variant.default_arithmetic(problem, options.dtype);
  return run_pass(pass, variant, problem, options);
}

}  // namespace kda_check::kda

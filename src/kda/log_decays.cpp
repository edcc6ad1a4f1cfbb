#include "kda/log_decays.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kda/head_io.hpp"

namespace kda_check::kda {

Problem with_log_decays(const Problem& problem) {
  const Dimensions& d = problem.dimensions();
  Problem plain = clone(problem);
  plain.g = tensor::Tensor("g", numeric::DType::fp64, problem.g.shape());
  plain.A_log.reset(), plain.dt_bias.reset();
  plain.options.gate = Gate::none, plain.options.lower_bound.reset(), plain.options.safe_gate = false;
  const std::span<double> values = plain.g.elements<double>();
  const HeadReader<double> reader(problem);
  constexpr std::size_t most = 64;
  std::vector<double> rows(most * d.K);
  for (const Sequence& s : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head)
      for (std::size_t begin = 0; begin < s.length(); begin += most) {
        const std::size_t count = std::min(most, s.length() - begin);
        reader.log_decay(s, head, begin, count, rows.data(), d.K);
        for (std::size_t t = 0; t < count; ++t)
          std::copy_n(&rows[t * d.K], d.K,
                      &values[((s.batch * d.T + s.begin + begin + t) * d.HV + head) * d.K]);
      }
  plain.validate();
  return plain;
}

std::optional<std::size_t> slowest_channel(const Problem& problem, std::size_t head) {
  const Dimensions& d = problem.dimensions();
  std::optional<std::size_t> slowest;
  double most = -HUGE_VAL;
  for (std::size_t k = 0; k < d.K; ++k) {
    double sum = 0;
    for (std::size_t i = head * d.K + k; i < problem.g.size(); i += d.HV * d.K) sum += problem.g.value(i);
    if (sum < 0 && sum > most) most = sum, slowest = k;
  }
  return slowest;
}

Answer answer_in_fp64(const Problem& problem, int threads) {
  const Variant& variant = variant_named("recurrent");
  RunOptions options;
  options.dtype = numeric::DType::fp64, options.threads = threads;
  options.arithmetic = variant.default_arithmetic(problem, options.dtype);
  return variant.run(problem, options);
}

}  // namespace kda_check::kda

#include "kda/head/token_blocks.hpp"

#include <cmath>

namespace kda_check::kda {

TokenBlocks::TokenBlocks(const HeadReader<double>& rows, const Problem& whole, const Sequence& of)
    : reader(rows),
      problem(whole),
      sequence(of),
      q(most * whole.dimensions().K),
      k(most * whole.dimensions().K),
      g(most * whole.dimensions().K),
      decay(most * whole.dimensions().K),
      beta(most),
      read(whole.erase ? most * whole.dimensions().K : 0),
      write2(whole.write ? most : 0),
      v2(whole.write ? most : 0),
      values(most * whole.dimensions().V) {}

void TokenBlocks::read_tokens(std::size_t head, std::size_t begin, std::size_t count) {
  const std::size_t K = problem.dimensions().K;
  const HeadTokens tokens{sequence, head, sequence.begin + begin, count};
  reader.query(tokens, NormForm::division, Rounding::none, q.data(), K);
  reader.key(tokens, NormForm::division, Rounding::none, k.data(), K);
  reader.log_decay(tokens, g.data(), K);
  const std::size_t V = problem.dimensions().V;
  const auto mean_square = [&](const double* row) {
    double sum = 0;
    for (std::size_t v = 0; v < V; ++v) sum += row[v] * row[v];
    return sum / static_cast<double>(V);
  };
  if (problem.dimensions().strength == Strength::value) {
    reader.column_beta(tokens, values.data(), V);
    for (std::size_t t = 0; t < count; ++t) beta[t] = std::sqrt(mean_square(values.data() + t * V));
  } else {
    reader.beta(tokens, beta.data());
  }
  if (problem.erase) {
    reader.read_key(tokens, k.data(), read.data(), K);
    reader.rows_of(*problem.write, problem.dimensions().HV, V, tokens, values.data(), V);
    for (std::size_t t = 0; t < count; ++t) write2[t] = mean_square(values.data() + t * V);
    reader.rows_of(problem.v, problem.dimensions().HV, V, tokens, values.data(), V);
    for (std::size_t t = 0; t < count; ++t)
      v2[t] = mean_square(values.data() + t * V) * static_cast<double>(V);
  }
  for (std::size_t i = 0; i < count * K; ++i) decay[i] = static_cast<float>(g[i]);
  kernels<float>().exponential(Exponential::exact, decay.data(), decay.data(), count * K);
  for (std::size_t i = 0; i < count * K; ++i) q[i] *= problem.scale();
}

void TokenBlocks::read_v(std::size_t head, std::size_t begin, std::size_t count) {
  reader.value({sequence, head, sequence.begin + begin, count}, values.data(), problem.dimensions().V);
}

void TokenBlocks::read_do(std::size_t head, std::size_t begin, std::size_t count) {
  reader.output_gradient({sequence, head, sequence.begin + begin, count}, values.data(),
                         problem.dimensions().V);
}

}  // namespace kda_check::kda

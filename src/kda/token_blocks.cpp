#include "kda/token_blocks.hpp"

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
      values(most * whole.dimensions().V) {}

void TokenBlocks::read_tokens(std::size_t head, std::size_t begin, std::size_t count) {
  const std::size_t K = problem.dimensions().K, at = sequence.begin + begin;
  reader.query(sequence, head, at, count, NormForm::division, Rounding::none, q.data(), K);
  reader.key(sequence, head, at, count, NormForm::division, Rounding::none, k.data(), K);
  reader.log_decay(sequence, head, at, count, g.data(), K);
  reader.beta(sequence, head, at, count, beta.data());
  for (std::size_t i = 0; i < count * K; ++i) decay[i] = static_cast<float>(g[i]);
  kernels<float>().exponential(Exponential::exact, decay.data(), decay.data(), count * K);
  for (std::size_t i = 0; i < count * K; ++i) q[i] *= problem.scale();
}

void TokenBlocks::read_v(std::size_t head, std::size_t begin, std::size_t count) {
  reader.value(sequence, head, sequence.begin + begin, count, values.data(), problem.dimensions().V);
}

void TokenBlocks::read_do(std::size_t head, std::size_t begin, std::size_t count) {
  reader.output_gradient(sequence, head, sequence.begin + begin, count, values.data(),
                         problem.dimensions().V);
}

}  // namespace kda_check::kda

// What the token forms, naive and recurrent, share: the inputs of a block of tokens, and whether the fast
// kernels can compute what is asked for.
#pragma once

#include "kda/head_io.hpp"
#include "kda/variants.hpp"

namespace kda_check::kda {

/// The arithmetic of a token form, resolved for one run.
struct TokenArithmetic {
  Operations operations;
  CastPoints casts;

  explicit TokenArithmetic(const RunOptions& options)
      : operations(operations_of(options.arithmetic)),
        casts(cast_points(options.arithmetic, options.dtype, false, false)) {}

  /// The fast kernels add sequentially and round nothing on the way.
  bool is_plain() const {
    return operations.reduction.kind == ReductionKind::sequential && casts.prediction == Rounding::none &&
           casts.carry == Rounding::none;
  }
};

/// Inputs of `block_tokens` tokens of one head as the token kernels take them.
template <class T>
struct TokenInputs {
  static constexpr std::size_t block_tokens = 64;

  TokenInputs(std::size_t K, std::size_t v_stride)
      : q(block_tokens * K),
        k(block_tokens * K),
        decay(block_tokens * K),
        beta(block_tokens),
        v(block_tokens * v_stride) {}

  void load(const HeadReader<T>& reader, const TokenArithmetic& arithmetic, const Sequence& s,
            std::size_t head, std::size_t begin, std::size_t count, std::size_t K, std::size_t v_stride) {
    const Rounding normalised = arithmetic.casts.normalised;
    reader.query(s, head, begin, count, NormForm::division, normalised, q.data(), K);
    const T scale = reader.scale();
    for (std::size_t i = 0; i < count * K; ++i) q[i] = q[i] * scale;
    reader.key(s, head, begin, count, NormForm::division, normalised, k.data(), K);
    reader.value(s, head, begin, count, v.data(), v_stride);
    reader.beta(s, head, begin, count, beta.data());
    reader.log_decay(s, head, begin, count, decay.data(), K);
    kernels<T>().exponential(arithmetic.operations.exponential, decay.data(), decay.data(), count * K);
    kernels<T>().round(arithmetic.casts.decay, decay.data(), count * K);
  }

  tensor::Scratch<T> q, k, decay, beta, v;
};

}  // namespace kda_check::kda

// Single sums through the kernel table, reached as variants reach them: the read-out of the token kernel,
// o = sum_k q_k S_k, and of the chunk kernel qg h and state + kg^T v_new.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/kernel_blocks.hpp"

namespace kda_check::test {

inline constexpr std::size_t lanes = 16;

/// Terms of one sum: a[d] * b[d][lane].
template <class T>
struct Terms {
  std::vector<T> a, b;
  std::size_t depth() const { return a.size(); }
  std::vector<T> column(std::size_t lane) const {
    std::vector<T> result;
    for (std::size_t d = 0; d < depth(); ++d) result.push_back(b[d * lanes + lane]);
    return result;
  }
};

/// Numbers over a few binades and of both signs, so that every order rounds differently.
template <class T>
Terms<T> random_terms(Random& random, std::size_t depth) {
  Terms<T> terms;
  for (std::size_t d = 0; d < depth; ++d)
    terms.a.push_back(static_cast<T>(random.normal() * std::exp2(random.uniform(-3, 3))));
  for (std::size_t e = 0; e < depth * lanes; ++e) terms.b.push_back(static_cast<T>(random.normal()));
  return terms;
}

inline constexpr Reduction mma25{ReductionKind::mma, 25}, mma24{ReductionKind::mma, 24};

/// sum_d a[d] b[d][lane] as the token kernel reads out: beta and v are zero, the state stays as it is.
template <class T>
std::vector<T> token_sum(const Reduction& reduction, bool is_fused, Terms<T> terms) {
  const std::size_t K = terms.depth();
  const std::vector<T> key(K), decay(K, T(1)), beta(1), v(lanes);
  std::vector<T> o(lanes);
  kernels<T>().token({1,
                      K,
                      lanes,
                      lanes,
                      terms.a.data(),
                      key.data(),
                      decay.data(),
                      beta.data(),
                      v.data(),
                      o.data(),
                      terms.b.data(),
                      lanes,
                      {is_fused, Exponential::exact, Special::ieee, reduction},
                      {}});
  return o;
}

/// start[lane] + sum_d a[d] b[d][lane]: the state update of the chunk kernel with one channel. `operands`:
/// the format whose tensor-core instruction is meant.
template <class T>
std::vector<T> chunk_sum(const Reduction& reduction, bool is_fused, const Terms<T>& terms,
                         const std::vector<T>& start, Rounding operands = Rounding::none) {
  ChunkData<T> data(terms.depth(), 1, lanes);
  std::fill(data.G.begin(), data.G.end(), T(0));
  std::vector<T> kg(data.kg.size()), v_new(data.v_new.size());
  for (std::size_t d = 0; d < terms.depth(); ++d) {
    kg[d * data.k_stride] = terms.a[d];
    for (std::size_t lane = 0; lane < lanes; ++lane)
      v_new[d * data.v_stride + lane] = terms.b[d * lanes + lane];
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) data.state[lane] = start[lane];
  data.block.operations = {is_fused, Exponential::exact, Special::ieee, reduction};
  data.block.casts.operands = operands;
  data.block.given.kg = kg.data(), data.block.given.v_new = v_new.data();
  kernels<T>().chunk[is_fused](data.block);
  return {data.state.begin(), data.state.begin() + lanes};
}

/// sum_k a[k] b[k][lane] from zero: qg h of a chunk of one row whose Aqk is zero.
template <class T>
std::vector<T> chunk_sum_from_zero(const Reduction& reduction, const Terms<T>& terms, Rounding operands) {
  const std::size_t K = terms.depth();
  ChunkData<T> data(1, K, lanes);
  std::vector<T> qg(data.qg.size()), h(data.h.size()), Aqk(data.Aqk.size());
  for (std::size_t k = 0; k < K; ++k) {
    qg[k] = terms.a[k];
    for (std::size_t lane = 0; lane < lanes; ++lane) h[k * data.v_stride + lane] = terms.b[k * lanes + lane];
  }
  data.block.scale = 1;
  data.block.operations = {true, Exponential::exact, Special::ieee, reduction};
  data.block.casts.operands = operands;
  data.block.given.qg = qg.data(), data.block.given.h = h.data(), data.block.given.Aqk = Aqk.data();
  kernels<T>().chunk[1](data.block);
  return {data.o.begin(), data.o.begin() + lanes};
}

}  // namespace kda_check::test

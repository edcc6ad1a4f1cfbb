// Memory for the kernels, filled with random numbers: what tests of the kernel table itself start from.
#pragma once

#include <cstring>
#include <vector>

#include "kda/kernels/table.hpp"
#include "support/random.hpp"

namespace kda_check::test {

using namespace kda_check::kda;

template <class T>
std::vector<T> numbers(Random& random, std::size_t count, double from, double to) {
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(random.uniform(from, to));
  return values;
}

template <class T>
const Kernels<T>& kernels_of(const KernelTable& table) {
  if constexpr (sizeof(T) == 4) {
    return table.fp32;
  } else {
    return table.fp64;
  }
}

/// One chunk in memory of its own.
template <class T>
struct ChunkData {
  ChunkData(std::size_t rows, std::size_t K, std::size_t V)
      : k_stride(padded(K)), v_stride(padded(V)), score_stride(padded(rows)) {
    Random random(rows * 1000 + K * 10 + V);
    q = numbers<T>(random, rows * k_stride, -0.3, 0.3), k = numbers<T>(random, rows * k_stride, -0.3, 0.3);
    v = numbers<T>(random, rows * v_stride, -1, 1), beta = numbers<T>(random, rows, 0, 1);
    G = numbers<T>(random, rows * k_stride, -0.1, 0), state = numbers<T>(random, K * v_stride, -1, 1);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t c = K; c < k_stride; ++c)
        q[i * k_stride + c] = k[i * k_stride + c] = G[i * k_stride + c] = 0;
      for (std::size_t c = V; c < v_stride; ++c) v[i * v_stride + c] = 0;
      if (i > 0)
        for (std::size_t c = 0; c < K; ++c) G[i * k_stride + c] += G[(i - 1) * k_stride + c];
    }
    for (std::size_t i = 0; i < K; ++i)
      for (std::size_t c = V; c < v_stride; ++c) state[i * v_stride + c] = 0;
    for (auto* const scores : {&Aqk, &L, &A}) scores->assign(rows * score_stride, 0);
    for (auto* const wide : {&w, &qg, &kg}) wide->assign(rows * k_stride, 0);
    for (auto* const wide : {&u, &v_new, &o}) wide->assign(rows * v_stride, 0);
    h.assign(K * v_stride, 0);
    scratch.assign(ChunkScratch(rows, k_stride, v_stride).total(), 0);
    block = {rows,
             K,
             V,
             k_stride,
             v_stride,
             score_stride,
             {},
             DecayForm::anchor_pair,
             16,
             T(0),
             InverseForm::substitution,
             16,
             {},
             T(0.4),
             q.data(),
             k.data(),
             k.data(),
             v.data(),
             beta.data(),
             G.data(),
             nullptr,
             Aqk.data(),
             L.data(),
             A.data(),
             w.data(),
             qg.data(),
             kg.data(),
             u.data(),
             v_new.data(),
             h.data(),
             o.data(),
             state.data(),
             scratch.data(),
             {}};
  }
  std::size_t k_stride, v_stride, score_stride;
  std::vector<T> q, k, v, beta, G, state, Aqk, L, A, w, qg, kg, u, v_new, o, h, scratch;
  ChunkBlock<T> block{};
};

template <class Values>
bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(*a.data())) == 0;
}

}  // namespace kda_check::test

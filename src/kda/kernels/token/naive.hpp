// The definition, token by token, as a textbook writes it: whole rows of the state, one operation after the
// other.
#pragma once

#include "kda/kernels/lanes/lanes.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T, bool is_fused>
void naive_block(const NaiveBlock<T>& block) {
  const std::size_t rows = block.key_dim, columns = block.value_dim;
  T* const error = block.scratch;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const T* const q = block.q + t * rows;
    const T *const key = block.k + t * rows, *const read = block.read_key() + t * rows;
    const T* const value = block.v + t * block.value_stride;
    const T* const decay = block.decay + t * rows;
    T* const output = block.o + t * block.value_stride;
    for (std::size_t v = 0; v < columns; ++v) error[v] = 0;
    for (std::size_t k = 0; k < rows; ++k) {
      T* const s = block.state + k * block.value_stride;
      for (std::size_t v = 0; v < columns; ++v) {
        s[v] = s[v] * decay[k];                                             // P_t = diag(e^g_t) S_t-1
        error[v] = scalar_multiply_add<is_fused>(read[k], s[v], error[v]);  // P_t^T k_t
      }
    }
    for (std::size_t v = 0; v < columns; ++v) error[v] = value[v] - error[v];  // e_t = v_t - P_t^T k_t
    const bool weight_on_key = block.column_beta == nullptr;
    if (!weight_on_key)
      for (std::size_t v = 0; v < columns; ++v)
        error[v] = error[v] * block.column_beta[t * block.value_stride + v];  // beta_t e_t
    for (std::size_t v = 0; v < columns; ++v) output[v] = 0;
    for (std::size_t k = 0; k < rows; ++k) {
      T* const s = block.state + k * block.value_stride;
      const T weight = weight_on_key ? block.beta[t] * key[k] : key[k];
      for (std::size_t v = 0; v < columns; ++v) {
        s[v] = scalar_multiply_add<is_fused>(weight, error[v], s[v]);      // S_t = P_t + (beta_t k_t) e_t^T
        output[v] = scalar_multiply_add<is_fused>(q[k], s[v], output[v]);  // o_t = S_t^T (scale q_t)
      }
    }
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

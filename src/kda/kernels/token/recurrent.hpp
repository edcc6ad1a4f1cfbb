// The recurrence over a block of tokens, for one tile of V lanes of one head's state.
//
// Every output element is computed by the same operations in the same order whatever the tile: sums over k
// run from k = 0 upwards. The state is read and written once per token: the update and read-out of token t
// and the decay and prediction of token t + 1 touch a row together. That changes when an operation happens,
// not what it computes.
#pragma once

#include "kda/kernels/lanes/lanes.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T, int W, bool is_fused>
void recurrent_tile(const RecurrentBlock<T>& block) {
  using Pack = Lanes<T, W>;
  const std::size_t rows = block.key_dim;
  const T* const read = block.read_key();
  T* const state = block.state;
  Pack prediction = Pack::zero();
  for (std::size_t k = 0; k < rows; ++k) {
    const Pack p = Pack::load(state + k * Pack::count) * block.decay[k];  // P_0 = diag(e^g_0) S
    p.store(state + k * Pack::count);
    prediction = multiply_add<is_fused>(read[k], p, prediction);  // P_0^T k_0
  }
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const T* const q = block.q + t * rows;
    const T* const key = block.k + t * rows;
    const Pack value = Pack::load(block.v + t * block.value_stride);
    // beta_t e_t, e_t = v_t - P_t^T k_t
    const Pack beta = block.column_beta != nullptr ? Pack::load(block.column_beta + t * block.value_stride)
                                                   : Pack::broadcast(block.beta[t]);
    const Pack write = (value - prediction) * beta;
    Pack output = Pack::zero();
    if (t + 1 < block.tokens) {
      const T* const next_decay = block.decay + (t + 1) * rows;
      const T* const next_key = read + (t + 1) * rows;
      prediction = Pack::zero();
      for (std::size_t k = 0; k < rows; ++k) {
        Pack s = multiply_add<is_fused>(
            key[k], write, Pack::load(state + k * Pack::count));          // S_t = P_t + k_t (beta_t e_t)^T
        output = multiply_add<is_fused>(q[k], s, output);                 // o_t = S_t^T (scale q_t)
        s = s * next_decay[k];                                            // P_t+1 = diag(e^g_t+1) S_t
        prediction = multiply_add<is_fused>(next_key[k], s, prediction);  // P_t+1^T k_t+1
        s.store(state + k * Pack::count);
      }
    } else {
      for (std::size_t k = 0; k < rows; ++k) {
        const Pack s = multiply_add<is_fused>(key[k], write, Pack::load(state + k * Pack::count));
        output = multiply_add<is_fused>(q[k], s, output);
        s.store(state + k * Pack::count);
      }
    }
    output.store(block.o + t * block.value_stride);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

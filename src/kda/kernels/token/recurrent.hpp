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

/// `replays`: the errors of predictions are asked for, not what is read out.
template <class T, int W, bool is_fused, bool replays>
void recurrent_tile(const ColumnsBlock<T>& block) {
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
    const T* const q = block.q + t * block.key_stride;
    const T* const key = block.k + t * block.key_stride;
    const std::size_t at = t * block.value_stride;
    const Pack error = Pack::load(block.rows + at) - prediction;  // e_t = v_t - P_t^T k_t
    if constexpr (replays) error.store(block.sums + at);
    const Pack write = error * block.template strengths<Pack>(t, at);
    Pack output = Pack::zero();
    const auto update = [&](std::size_t k) __attribute__((always_inline)) {
      const Pack s = multiply_add<is_fused>(
          key[k], write, Pack::load(state + k * Pack::count));  // S_t = P_t + k_t (beta_t e_t)^T
      if constexpr (!replays) output = multiply_add<is_fused>(q[k], s, output);  // o_t = S_t^T (scale q_t)
      return s;
    };
    if (t + 1 < block.tokens) {
      const T* const next_decay = block.decay + (t + 1) * block.key_stride;
      const T* const next_key = read + (t + 1) * block.key_stride;
      prediction = Pack::zero();
      for (std::size_t k = 0; k < rows; ++k) {
        const Pack p = update(k) * next_decay[k];                         // P_t+1 = diag(e^g_t+1) S_t
        prediction = multiply_add<is_fused>(next_key[k], p, prediction);  // P_t+1^T k_t+1
        p.store(state + k * Pack::count);
      }
    } else {
      for (std::size_t k = 0; k < rows; ++k) update(k).store(state + k * Pack::count);
    }
    if constexpr (!replays) output.store(block.sums + at);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

// The states of a part of the tokens once more, from what each token writes: an element alone, there is
// nothing to add up.
#pragma once

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/truth/gradient_problem.cuh"

namespace kda_check::cuda {

constexpr int states_rows = 4, states_warps = 4;  ///< of a thread, of a block

/// A thread has four rows of a column; block (x, y, z): column and rows, head, piece.
template <class Step>
__global__ void __launch_bounds__(states_warps* warp_lanes)
    gradient_states(const __grid_constant__ GradientPortion p) {
  using Number = typename Step::Number;
  const int columns = (p.value_stride + warp_lanes - 1) / warp_lanes;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes,
            warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int v = static_cast<int>(blockIdx.x) % columns * warp_lanes + lane,
            first_row = (static_cast<int>(blockIdx.x) / columns * states_warps + warp) * states_rows,
            head = static_cast<int>(blockIdx.y);
  const GradientPiece piece = p.pieces[blockIdx.z];
  const int rows = min(states_rows, p.K - first_row), tokens = static_cast<int>(piece.count);
  if (rows <= 0 || v >= p.value_stride) return;
  Number state[states_rows];
  double magnitude[states_rows];
#pragma unroll
  for (int r = 0; r < states_rows; ++r) {
    if (r >= rows) break;
    if (piece.begins()) {
      const double x = p.stored_state(p.initial_state, piece.sequence, head, first_row + r, v);
      state[r] = Step::exact(x), magnitude[r] = numeric::absolute(x);
    } else {
      const std::size_t at = p.state_at(piece.checkpoint, head, first_row + r, v);
      state[r] = Step::of(p.checkpoints.hi[at], p.checkpoints.lo[at]);
      magnitude[r] = p.checkpoints.magnitude[at];
    }
  }
  const auto put = [&](const WithMagnitude& to, std::size_t which) {
#pragma unroll
    for (int r = 0; r < states_rows; ++r) {
      if (r >= rows) break;
      const std::size_t at = p.state_at(which, head, first_row + r, v);
      const numeric::DoubleDouble s = Step::pair(state[r]);
      to.hi[at] = s.hi, to.lo[at] = s.lo, to.magnitude[at] = magnitude[r];
    }
  };
  std::size_t group = piece.group;
  for (int t = 0; t < tokens; ++t) {
    if (t == 0 || (tokens - t) % group_tokens == 0) put(p.groups, group++);
    const std::size_t token = (std::size_t(piece.first) + t) * p.heads + head,
                      at = token * p.value_stride + v;
    const Number write = Step::of(p.write.hi[at], p.write.lo[at]);
    const double terms = p.write.magnitude[at];
    const ChannelPairs* const x = p.channels + token * p.K + first_row;
#pragma unroll
    for (int r = 0; r < states_rows; ++r) {
      if (r >= rows) break;
      const Number decayed = Step::scaled(state[r], Step::of(x[r].decay_hi, x[r].decay_lo));
      state[r] = Step::updated(Step::of(x[r].k_hi, x[r].k_lo), write, decayed);
      magnitude[r] = kda::updated_magnitude(magnitude[r] * x[r].decay_hi, terms, x[r].retained, x[r].written);
    }
  }
  if (piece.ends()) put(p.final_states, blockIdx.z);
}

template <class Step>
void launch_gradient_states_in(const GradientPortion& p, cudaStream_t stream) {
  constexpr int rows = states_rows * states_warps;
  launch_on(
      stream, "launching the states of the gradient oracle", gradient_states<Step>,
      dim3(static_cast<unsigned>((p.value_stride + warp_lanes - 1) / warp_lanes * ((p.K + rows - 1) / rows)),
           static_cast<unsigned>(p.heads), static_cast<unsigned>(p.piece_count)),
      states_warps * warp_lanes, 0, p);
}

}  // namespace kda_check::cuda

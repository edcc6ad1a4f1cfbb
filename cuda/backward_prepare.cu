// gpu-recurrent backwards: inputs, states and their gradients as the recurrence reads them, in the type that
// is computed in (recurrent_backward.cuh).
#include "backward_tokens.cuh"
#include "recurrent_backward.cuh"

namespace kda_check::cuda {

namespace {

/// The first value head of a group has the query head too.
template <class T, bool is_fused>
__global__ void __launch_bounds__(token_warps* warp_lanes)
    prepare_tokens(const __grid_constant__ DeviceProblem p, const __grid_constant__ BackwardWork<T> work) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, local = blockIdx.y,
            head = work.first_head + local;
  const std::size_t token = std::size_t{blockIdx.x} * token_warps + threadIdx.x / warp_lanes;
  if (token >= static_cast<std::size_t>(work.token_count)) return;
  const std::size_t stored = p.at(token, p.HV, head), row = work.row(token, local);
  const T amplitude = gate_amplitude<T>(p, head);
#pragma unroll 1
  for (int k = lane; k < p.K; k += warp_lanes) {
    const T g = log_decay(p, load<T>(p.g, stored * p.K + k), head, k, amplitude);
    work.decay[row * p.K + k] = kda::rounded(p.casts.decay, exponential(p.exponential, g));
  }
#pragma unroll 1
  for (int v = lane; v < p.V; v += warp_lanes) {
    work.v[row * p.V + v] = load<T>(p.v, stored * p.V + v);
    work.d_o[row * p.V + v] =
        p.output_gradient.data == nullptr ? T(0) : load<T>(p.output_gradient, stored * p.V + v);
  }
  if (lane == 0) work.beta[row] = write_strength(p, load<T>(p.beta, stored));
  if (local % work.group != 0) return;
  const std::size_t query = p.at(token, p.H, p.query_head(head)), at = work.query_row(token, local) * p.K;
  T y[KeyRow<T>::rows];
  const KeyRow<T> q(p, p.q, query), key(p, p.k, query);
  q.template normalised<is_fused>(p, false, y);
  q.over_channels([&](int r, int k) { work.q[at + k] = y[r] * T(p.scale); });
  key.template normalised<is_fused>(p, false, y);
  key.over_channels([&](int r, int k) { work.k[at + k] = y[r]; });
}

/// The initial state and dht, or zeros.
template <class T>
__global__ void __launch_bounds__(state_threads)
    prepare_states(const __grid_constant__ DeviceProblem p, const __grid_constant__ BackwardWork<T> work) {
  const int blocks = state_blocks(p), number = static_cast<int>(blockIdx.x) / blocks, local = blockIdx.y,
            element = static_cast<int>(blockIdx.x) % blocks * state_threads + static_cast<int>(threadIdx.x);
  if (element >= p.K * p.V) return;
  const std::size_t from = state_element(p, std::size_t(number) * p.HV + work.first_head + local,
                                         element / p.V, element % p.V),
                    to = work.state(number, local, p) + element;
  work.initial[to] = p.initial_state.data == nullptr ? T(0) : load<T>(p.initial_state, from);
  work.final_gradient[to] = p.state_gradient.data == nullptr ? T(0) : load<T>(p.state_gradient, from);
}

}  // namespace

template <class T>
void launch_backward_prepare(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work) {
  launch("gpu-recurrent backwards, inputs", is_fused ? prepare_tokens<T, true> : prepare_tokens<T, false>,
         dim3((work.token_count + token_warps - 1) / token_warps, work.heads), token_warps * warp_lanes, 0, p,
         work);
  launch("gpu-recurrent backwards, states", prepare_states<T>,
         dim3(state_blocks(p) * work.sequence_count, work.heads), state_threads, 0, p, work);
}
template void launch_backward_prepare<float>(bool, const DeviceProblem&, const BackwardWork<float>&);
template void launch_backward_prepare<double>(bool, const DeviceProblem&, const BackwardWork<double>&);

}  // namespace kda_check::cuda

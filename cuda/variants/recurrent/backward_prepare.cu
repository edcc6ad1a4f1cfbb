// gpu-recurrent backwards: inputs, states and their gradients as the recurrence reads them, in the type that
// is computed in (recurrent_backward.cuh).
#include "cuda/gradients/tokens.cuh"
#include "cuda/problem/gates.cuh"
#include "cuda/variants/recurrent/recurrent_backward.cuh"

namespace kda_check::cuda {

namespace {

/// The first value head of a group has the query head too. relatives: what a token is written with may be a
/// beta for each column, or gates.
template <class T, bool is_fused, int rows, bool relatives>
__global__ void __launch_bounds__(token_warps* warp_lanes)
    prepare_tokens(const __grid_constant__ DeviceProblem p, const __grid_constant__ BackwardWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes, local = blockIdx.y,
            head = work.first_head + local;
  const std::size_t token = std::size_t{blockIdx.x} * token_warps + warp;
  if (token >= static_cast<std::size_t>(work.token_count)) return;
  const std::size_t stored = p.at(token, p.HV, head), row = work.row(token, local);
  const LaneRow<rows> channels(p.K);
  const bool has_gates = relatives && p.strength == kda::Strength::gates,
             of_columns = relatives && p.strength == kda::Strength::value;
  Stored gates[rows] = {};
  channels.fetch(p.g, stored * p.K, gates);
  for (int first = 0; first < p.V; first += LaneRow<rows>::elements) {
    const LaneRow<rows> columns(p.V, first);
    Stored values[rows] = {}, outputs[rows] = {};
    T x[rows];
    columns.fetch(p.v, stored * p.V, values);
    if (p.output_gradient.data != nullptr) columns.fetch(p.output_gradient, stored * p.V, outputs);
    values_of(values, p.v.dtype, x);
    if (has_gates) columns.times(p.write, stored * p.V, x);
    columns.store(x, work.v + row * p.V);
    if (of_columns) {
      columns.fetch(p.beta, stored * p.V, values);
      values_of(values, p.beta.dtype, x);
      columns.over_elements([&](int r, int) { x[r] = write_strength(p, x[r]); });
      columns.store(x, work.beta + row * p.V);
    }
    values_of(outputs, p.output_gradient.dtype, x);
    columns.store(x, work.d_o + row * p.V);
  }
  if (threadIdx.x % warp_lanes == 0 && !of_columns)
    work.beta[row] = has_gates ? T(1) : write_strength(p, load<T>(p.beta, stored));
  // Through this lane's places in shared memory, in a loop that is not unrolled: gates are long.
  T* const decay = reinterpret_cast<T*>(memory) + warp * p.K;
  T x[rows];
  values_of(gates, p.g.dtype, x);
  channels.store(x, decay);
  const T amplitude = gate_amplitude<T>(p, head);
#pragma unroll 1
  for (int k = channels.from; k < p.K; k += warp_lanes) {
    const T g = log_decay(p, decay[k], head, k, amplitude);
    decay[k] = kda::rounded(p.casts.decay, exponential(p.exponential, g));
  }
  channels.load(decay, x);
  channels.store(x, work.decay + row * p.K);
  const std::size_t query = p.at(token, p.H, p.query_head(head)), at = work.query_row(token, local) * p.K;
  if (has_gates) {
    KeyRow<T, rows>(p, p.k, query).template normalised<is_fused>(p, false, x);
    channels.times(p.erase, stored * p.K, x);
    channels.store(x, work.read + row * p.K);
  }
  if (local % work.group != 0) return;
  const KeyRow<T, rows> q(p, p.q, query), key(p, p.k, query);
  q.template normalised<is_fused>(p, false, x);
  channels.over_elements([&](int r, int) { x[r] = x[r] * T(p.scale); });
  channels.store(x, work.q + at);
  key.template normalised<is_fused>(p, false, x);
  channels.store(x, work.k + at);
}

template <class T, bool is_fused>
struct PrepareKernels {
  bool relatives;
  template <int rows>
  auto of() const {
    return relatives ? prepare_tokens<T, is_fused, rows, true> : prepare_tokens<T, is_fused, rows, false>;
  }
};

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
  const bool relatives = p.strength != kda::Strength::head;
  launch("gpu-recurrent backwards, inputs",
         is_fused ? kernel_for_rows(p, PrepareKernels<T, true>{relatives})
                  : kernel_for_rows(p, PrepareKernels<T, false>{relatives}),
         dim3((work.token_count + token_warps - 1) / token_warps, work.heads), token_warps * warp_lanes,
         sizeof(T) * token_warps * p.K, p, work);
  launch("gpu-recurrent backwards, states", prepare_states<T>,
         dim3(state_blocks(p) * work.sequence_count, work.heads), state_threads, 0, p, work);
}
template void launch_backward_prepare<float>(bool, const DeviceProblem&, const BackwardWork<float>&);
template void launch_backward_prepare<double>(bool, const DeviceProblem&, const BackwardWork<double>&);

}  // namespace kda_check::cuda

// From the gradients of the recurrence to those of the tensors as they are stored (token_gradients.cuh). The
// rules themselves are those of the CPU (kda/kernels/gradient_rules.hpp).
#include "backward_tokens.cuh"
#include "kda/kernels/gradient_rules.hpp"
#include "launch.cuh"
#include "token_gradients.cuh"

namespace kda_check::cuda {

namespace {

using kda::Gradient;

/// One token of one value head, which a warp has.
template <class T, bool is_fused, int rows>
class ChainRules {
 public:
  /// `places`: [2][K] for this warp alone.
  __device__ ChainRules(const DeviceProblem& p, const TokenGradients<T>& work, std::size_t token, int local,
                        T* places)
      : p_(p),
        work_(work),
        channels_(p.K),
        token_(token),
        local_(local),
        head_(work.first_head + local),
        row_(work.row(token, local)),
        stored_(p.at(token, p.HV, head_)),
        terms_(places),
        gates_(places + p.K) {
    lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
  }

  /// Gradients are on their way before anything is done with one.
  __device__ void run() const {
    const bool leads = local_ % work_.group == 0;  // the first value head of a group has the query head too
    T y[rows], dg[rows], dq[rows] = {}, dk[rows] = {};
    const LaneRow<rows> columns(p_.V);
    columns.load(work_.y + row_ * p_.V, y);
    channels_.load(work_.dg + row_ * p_.K, dg);
    if (leads) {
      channels_.load(work_.dq + row_ * p_.K, dq);
      channels_.load(work_.dk + row_ * p_.K, dk);
    }
    columns.store(y, tensor(Gradient::dv), stored_ * p_.V);
    for (int first = LaneRow<rows>::elements; first < p_.V; first += LaneRow<rows>::elements) {
      const LaneRow<rows> more(p_.V, first);
      more.load(work_.y + row_ * p_.V, y);
      more.store(y, tensor(Gradient::dv), stored_ * p_.V);
    }
    strength();
    gate(dg);
    if (!leads) return;
    query_or_key(Gradient::dq, p_.q, work_.dq, work_.dq_factor, dq);
    query_or_key(Gradient::dk, p_.k, work_.dk, T(1), dk);
  }

 private:
  __device__ void strength() const {
    T gradient = work_.dbeta != nullptr ? work_.dbeta[row_] : prediction_times_error();
    if (lane_ != 0) return;
    if (p_.beta_sigmoid) {
      const T beta = load<T>(p_.beta, stored_);
      gradient =
          kda::through_strength(gradient, p_.allow_neg_eigval ? T(2) : T(1), sigmoid(beta), sigmoid(-beta));
    }
    const MutableTensor& to = tensor(Gradient::dbeta);
    store(gradient, to.data, to.dtype, stored_);
  }

  /// From the log decay to the stored gate. One channel after the other goes through this lane's places, in
  /// a loop that is not unrolled: gates are long.
  __device__ void gate(T (&dg)[rows]) const {
    const MutableTensor& to = tensor(Gradient::dg);
    if (p_.gate == kda::Gate::none) return channels_.store(dg, to, stored_ * p_.K);
    Stored stored[rows] = {};
    channels_.fetch(p_.g, stored_ * p_.K, stored);
    T g[rows];
    values_of(stored, p_.g.dtype, g);
    channels_.store(g, gates_);
    channels_.store(dg, terms_);
    const T amplitude = gate_amplitude<T>(p_, head_);
#pragma unroll 1
    for (int k = channels_.from; k < p_.K; k += warp_lanes)
      gates_[k] = of_gate(k, gates_[k], terms_[k], amplitude, terms_[k]);
    channels_.load(gates_, dg);
    channels_.store(dg, to, stored_ * p_.K);
    if (work_.bias_from_stored_gate)
      channels_.over_elements([&](int r, int k) { dg[r] = load<T>(to.data, to.dtype, stored_ * p_.K + k); });
    channels_.store(dg, work_.dg + row_ * p_.K);
    __syncwarp();
    if (lane_ != 0) return;
    T sum = T(0);
    for (int k = 0; k < p_.K; ++k) sum = sum + terms_[k];
    work_.amplitude_terms[row_] = sum;
  }

  /// dq or dk of the query head, from `sum`, that of its first value head.
  __device__ void query_or_key(Gradient gradient, const Tensor& input, const T* parts, T factor,
                               T (&sum)[rows]) const {
    const std::size_t query = p_.at(token_, p_.H, p_.query_head(head_));
    channels_.over_elements([&](int r, int) { sum[r] = factor * sum[r]; });
#pragma unroll 1
    for (int member = 1; member < work_.group; ++member) {
      T part[rows];
      channels_.load(parts + (row_ + member) * p_.K, part);
      channels_.over_elements([&](int r, int) { sum[r] = sum[r] + factor * part[r]; });
    }
    if (p_.qk_l2norm) {
      const KeyRow<T, rows> row(p_, input, query);
      T y[rows];
      const T reciprocal = T(1) / row.template normalised<is_fused>(p_, work_.norm_by_reciprocal, y);
      const T along = row.template dot<is_fused>(sum, y);
      channels_.over_elements(
          [&](int r, int) { sum[r] = kda::through_l2_norm(sum[r], y[r], along, reciprocal); });
    }
    channels_.store(sum, tensor(gradient), query * p_.K);
  }

  /// r . e
  __device__ T prediction_times_error() const {
    const T *const r = work_.r + row_ * p_.V, *const e = work_.e + row_ * p_.V;
    T sum = lane_ < p_.V ? r[lane_] * e[lane_] : T(0);
#pragma unroll 1
    for (int v = lane_ + warp_lanes; v < p_.V; v += warp_lanes) sum = multiply_add<is_fused>(r[v], e[v], sum);
    return warp_sum(sum, p_.V < warp_lanes ? p_.V : warp_lanes);
  }
  __device__ T sigmoid(T z) const { return kda::sigmoid_from(exponential(p_.exponential, -z)); }
  __device__ const MutableTensor& tensor(Gradient gradient) const {
    return p_.gradients[static_cast<int>(gradient)];
  }
  /// The gradient of the stored gate of channel k; `term`: of the amplitude.
  __device__ T of_gate(int k, T gate, T dg, T amplitude, T& term) const {
    const T y = p_.dt_bias.data == nullptr ? gate : gate + load<T>(p_.dt_bias, std::size_t(head_) * p_.K + k);
    if (p_.gate == kda::Gate::softplus) {
      term = kda::through_slope(dg, log_decay(p_, gate, head_, k, amplitude));
      return kda::through_softplus(dg, amplitude, sigmoid(y));
    }
    const T z = amplitude * y;
    const T gradient = kda::through_bounded(dg, amplitude, T(p_.lower_bound), sigmoid(z), sigmoid(-z));
    term = kda::through_slope(gradient, y);
    return gradient;
  }

  const DeviceProblem& p_;
  const TokenGradients<T>& work_;
  const LaneRow<rows> channels_;
  const std::size_t token_;
  const int local_, head_;
  const std::size_t row_, stored_;
  T *const terms_, *const gates_;
  int lane_;
};

template <class T, bool is_fused, int rows>
__global__ void __launch_bounds__(token_warps* warp_lanes)
    chain_rules(const __grid_constant__ DeviceProblem p, const __grid_constant__ TokenGradients<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const std::size_t token = std::size_t{blockIdx.x} * token_warps + warp;
  if (token >= static_cast<std::size_t>(work.token_count)) return;
  ChainRules<T, is_fused, rows>(p, work, token, blockIdx.y, reinterpret_cast<T*>(memory) + 2 * warp * p.K)
      .run();
}

template <class T, bool is_fused>
struct ChainKernels {
  template <int rows>
  auto of() const {
    return chain_rules<T, is_fused, rows>;
  }
};

template <class T>
__global__ void __launch_bounds__(state_threads)
    store_initial_gradient(const __grid_constant__ DeviceProblem p,
                           const __grid_constant__ TokenGradients<T> work) {
  const int blocks = state_blocks(p), number = static_cast<int>(blockIdx.x) / blocks, local = blockIdx.y,
            element = static_cast<int>(blockIdx.x) % blocks * state_threads + static_cast<int>(threadIdx.x);
  if (element >= p.K * p.V) return;
  const MutableTensor& to = p.gradients[static_cast<int>(Gradient::dinitial_state)];
  store(work.initial_gradient[work.state(number, local, p) + element], to.data, to.dtype,
        state_element(p, std::size_t(number) * p.HV + work.first_head + local, element / p.V, element % p.V));
}

}  // namespace

template <class T>
void launch_backward_chain(bool is_fused, const DeviceProblem& p, const TokenGradients<T>& work) {
  launch(
      "backwards, chain rules",
      is_fused ? kernel_for_rows(p, ChainKernels<T, true>()) : kernel_for_rows(p, ChainKernels<T, false>()),
      dim3((work.token_count + token_warps - 1) / token_warps, work.heads), token_warps * warp_lanes,
      2 * sizeof(T) * token_warps * p.K, p, work);
  if (work.initial_gradient != nullptr)
    launch("backwards, initial state", store_initial_gradient<T>,
           dim3(state_blocks(p) * work.sequence_count, work.heads), state_threads, 0, p, work);
}
template void launch_backward_chain<float>(bool, const DeviceProblem&, const TokenGradients<float>&);
template void launch_backward_chain<double>(bool, const DeviceProblem&, const TokenGradients<double>&);

}  // namespace kda_check::cuda

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
template <class T, bool is_fused>
class ChainRules {
 public:
  __device__ ChainRules(const DeviceProblem& p, const TokenGradients<T>& work, std::size_t token, int local)
      : p_(p),
        work_(work),
        token_(token),
        local_(local),
        head_(work.first_head + local),
        row_(work.row(token, local)),
        stored_(p.at(token, p.HV, head_)) {
    lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
  }

  __device__ void value_and_beta() const {
    T gradient = work_.dbeta != nullptr ? work_.dbeta[row_] : prediction_times_error();
#pragma unroll 1
    for (int v = lane_; v < p_.V; v += warp_lanes)
      put(Gradient::dv, stored_ * p_.V + v, work_.y[row_ * p_.V + v]);
    if (lane_ != 0) return;
    if (p_.beta_sigmoid) {
      const T beta = load<T>(p_.beta, stored_);
      gradient =
          kda::through_strength(gradient, p_.allow_neg_eigval ? T(2) : T(1), sigmoid(beta), sigmoid(-beta));
    }
    put(Gradient::dbeta, stored_, gradient);
  }

  /// `terms`: [K] for this warp alone.
  __device__ void gate(T* terms) const {
    T* const dg = work_.dg + row_ * p_.K;
    const T amplitude = gate_amplitude<T>(p_, head_);
#pragma unroll 1
    for (int k = lane_; k < p_.K; k += warp_lanes) {
      if (p_.gate != kda::Gate::none) dg[k] = of_gate(k, dg[k], amplitude, terms[k]);
      put(Gradient::dg, stored_ * p_.K + k, dg[k]);
      if (work_.bias_from_stored_gate) dg[k] = stored_gate_gradient(stored_ * p_.K + k);
    }
    if (p_.gate == kda::Gate::none) return;
    __syncwarp();
    if (lane_ != 0) return;
    T sum = T(0);
    for (int k = 0; k < p_.K; ++k) sum = sum + terms[k];
    work_.amplitude_terms[row_] = sum;
  }

  /// dq or dk of the query head of this group, whose first value head this is.
  __device__ void query_or_key(Gradient gradient, const Tensor& input, const T* parts, T factor) const {
    const std::size_t query = p_.at(token_, p_.H, p_.query_head(head_));
    const KeyRow<T> row(p_, input, query);
    T sum[KeyRow<T>::rows];
#pragma unroll 1
    for (int member = 0; member < work_.group; ++member)
      row.over_channels([&](int r, int k) {
        const T part = factor * parts[(row_ + member) * p_.K + k];
        sum[r] = member == 0 ? part : sum[r] + part;
      });
    if (p_.qk_l2norm) {
      T y[KeyRow<T>::rows];
      const T reciprocal = T(1) / row.template normalised<is_fused>(p_, work_.norm_by_reciprocal, y);
      const T along = row.template dot<is_fused>(sum, y);
      row.over_channels([&](int r, int) { sum[r] = kda::through_l2_norm(sum[r], y[r], along, reciprocal); });
    }
    row.over_channels([&](int r, int k) { put(gradient, query * p_.K + k, sum[r]); });
  }

 private:
  /// r . e
  __device__ T prediction_times_error() const {
    const T *const r = work_.r + row_ * p_.V, *const e = work_.e + row_ * p_.V;
    T sum = lane_ < p_.V ? r[lane_] * e[lane_] : T(0);
#pragma unroll 1
    for (int v = lane_ + warp_lanes; v < p_.V; v += warp_lanes) sum = multiply_add<is_fused>(r[v], e[v], sum);
    return warp_sum(sum, p_.V < warp_lanes ? p_.V : warp_lanes);
  }
  __device__ T stored_gate_gradient(std::size_t at) const {
    const MutableTensor& tensor = p_.gradients[static_cast<int>(Gradient::dg)];
    return load<T>(tensor.data, tensor.dtype, at);
  }
  __device__ T sigmoid(T z) const { return kda::sigmoid_from(exponential(p_.exponential, -z)); }
  __device__ void put(Gradient gradient, std::size_t at, T x) const {
    const MutableTensor& tensor = p_.gradients[static_cast<int>(gradient)];
    store(x, tensor.data, tensor.dtype, at);
  }
  /// The gradient of the stored gate of channel k; `term`: of the amplitude.
  __device__ T of_gate(int k, T dg, T amplitude, T& term) const {
    const T gate = load<T>(p_.g, stored_ * p_.K + k);
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
  const std::size_t token_;
  const int local_, head_;
  const std::size_t row_, stored_;
  int lane_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(token_warps* warp_lanes)
    chain_rules(const __grid_constant__ DeviceProblem p, const __grid_constant__ TokenGradients<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes, local = blockIdx.y;
  const std::size_t token = std::size_t{blockIdx.x} * token_warps + warp;
  if (token >= static_cast<std::size_t>(work.token_count)) return;
  const ChainRules<T, is_fused> rules(p, work, token, local);
  rules.value_and_beta();
  rules.gate(reinterpret_cast<T*>(memory) + warp * p.K);
  if (local % work.group != 0) return;
  rules.query_or_key(Gradient::dq, p.q, work.dq, work.dq_factor);
  rules.query_or_key(Gradient::dk, p.k, work.dk, T(1));
}

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
  launch("backwards, chain rules", is_fused ? chain_rules<T, true> : chain_rules<T, false>,
         dim3((work.token_count + token_warps - 1) / token_warps, work.heads), token_warps * warp_lanes,
         sizeof(T) * token_warps * p.K, p, work);
  if (work.initial_gradient != nullptr)
    launch("backwards, initial state", store_initial_gradient<T>,
           dim3(state_blocks(p) * work.sequence_count, work.heads), state_threads, 0, p, work);
}
template void launch_backward_chain<float>(bool, const DeviceProblem&, const TokenGradients<float>&);
template void launch_backward_chain<double>(bool, const DeviceProblem&, const TokenGradients<double>&);

}  // namespace kda_check::cuda

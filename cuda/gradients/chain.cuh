// From the gradients of the recurrence to those of the tensors as they are stored (token_gradients.cuh), with
// what the forward pass made or left of q, k and g.
#pragma once

#include "cuda/device/launch.cuh"
#include "cuda/gradients/stored_gradients.cuh"
#include "cuda/gradients/token_gradients.cuh"
#include "cuda/gradients/tokens.cuh"
#include "cuda/problem/gates.cuh"

namespace kda_check::cuda {

using kda::Gradient;

/// What the forward pass made of q, k and g, made again.
template <class T, bool is_fused>
struct MadeAgain {
  /// A row of q or k, normalised, and the reciprocal of its norm.
  template <int rows>
  __device__ T normalised(const DeviceProblem& p, const TokenGradients<T>& work, const KeyRow<T, rows>& row,
                          Gradient, std::size_t, T (&y)[rows]) const {
    return T(1) / row.template normalised<is_fused>(p, work.norm_by_reciprocal, y);
  }
  __device__ T through_gate(const DeviceProblem& p, T gate, int head, int k, T dg, T amplitude,
                            T& term) const {
    return gate_gradient(p, gate, head, k, dg, amplitude, FastExponential{p.exponential}, term);
  }
};

/// One token of one value head, which a warp has. relatives: one log decay may be that of all channels, and
/// what a token is written with a beta for each column, or gates.
template <class T, bool is_fused, int rows, class Forwards, bool relatives>
class ChainRules {
 public:
  /// `places`: [2][K] for this warp alone.
  __device__ ChainRules(const DeviceProblem& p, const TokenGradients<T>& work, const Forwards& forwards,
                        std::size_t token, int local, T* places)
      : p_(p),
        work_(work),
        forwards_(forwards),
        channels_(p.K),
        token_(token),
        local_(local),
        head_(work.first_head + local),
        row_(work.gradient_row(token, local)),
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
    const bool has_values = work_.y != nullptr;  // else they are stored already
    if (has_values) columns.load(work_.y + row_ * work_.value_stride, y);
    const bool has_gates = work_.dg != nullptr;  // else they are stored already
    if (has_gates) channels_.load(work_.dg + row_ * work_.key_stride, dg);
    if (leads) {
      channels_.load(work_.dq + row_ * work_.key_stride, dq);
      load_key_part(0, dk);
    }
    if (has_values) value(columns, y);
    for (int first = LaneRow<rows>::elements; has_values && first < p_.V; first += LaneRow<rows>::elements) {
      const LaneRow<rows> more(p_.V, first);
      more.load(work_.y + row_ * work_.value_stride, y);
      value(more, y);
    }
    strength();
    const bool has_scalar_gate = relatives && p_.decays < p_.K;
    if (has_gates) has_scalar_gate ? scalar_gate(dg) : gate(dg);
    if (!leads) return;
    query_or_key(Gradient::dq, p_.q, work_.dq, work_.dq_factor, dq);
    query_or_key(Gradient::dk, p_.k, work_.dk, T(1), dk);
  }

 private:
  /// dv, and with a write gate that of it, which `y` is times v.
  __device__ void value(const LaneRow<rows>& columns, T (&y)[rows]) const {
    if (relatives && p_.strength == kda::Strength::gates) {
      T dwrite[rows];
      columns.over_elements([&](int r, int) { dwrite[r] = y[r]; });
      columns.times(p_.v, stored_ * p_.V, dwrite);
      columns.store(dwrite, tensor(Gradient::dwrite), stored_ * p_.V);
      columns.times(p_.write, stored_ * p_.V, y);
    }
    columns.store(y, tensor(Gradient::dv), stored_ * p_.V);
  }
  /// dk of a value head of the group, with what comes through its erase gate.
  __device__ void load_key_part(int member, T (&dk)[rows]) const {
    channels_.load(work_.dk + (row_ + member * work_.head_step()) * work_.key_stride, dk);
    if (!relatives || work_.dread == nullptr) return;
    T dread[rows];
    channels_.load(work_.dread + (row_ + member * work_.head_step()) * work_.key_stride, dread);
    channels_.times(p_.erase, (stored_ + member) * p_.K, dread);
    channels_.over_elements([&](int r, int) { dk[r] = dk[r] + dread[r]; });
  }
  /// derase = k dE.
  __device__ void erase() const {
    const KeyRow<T, rows> row(p_, p_.k, p_.at(token_, p_.H, p_.query_head(head_)));
    T key[rows], dread[rows];
    forwards_.normalised(p_, work_, row, Gradient::dk, row_, key);
    channels_.load(work_.dread + row_ * work_.key_stride, dread);
    channels_.over_elements([&](int r, int) { dread[r] = key[r] * dread[r]; });
    channels_.store(dread, tensor(Gradient::derase), stored_ * p_.K);
  }
  /// dbeta; one for each column; or of the erase gate.
  __device__ void strength() const {
    if (relatives && p_.strength == kda::Strength::gates) return erase();
    if (relatives && p_.strength == kda::Strength::value) return column_strengths();
    T gradient = work_.dbeta != nullptr ? work_.dbeta[row_] : prediction_times_error();
    if (lane_ != 0) return;
    gradient = strength_gradient(p_, gradient, stored_, FastExponential{p_.exponential});
    const MutableTensor& to = tensor(Gradient::dbeta);
    store(gradient, to.data, to.dtype, stored_);
  }

  /// r e, through the sigmoid.
  __device__ void column_strengths() const {
    const T *const r = work_.r + row_ * work_.value_stride, *const e = work_.e + row_ * work_.value_stride;
    const MutableTensor& to = tensor(Gradient::dbeta);
#pragma unroll 1
    for (int v = lane_; v < p_.V; v += warp_lanes)
      store(strength_gradient(p_, r[v] * e[v], stored_ * p_.V + v, FastExponential{p_.exponential}), to.data,
            to.dtype, stored_ * p_.V + v);
  }

  /// One log decay for all channels: the sum of theirs, from the first upwards, then as below.
  __device__ void scalar_gate(const T (&dg)[rows]) const {
    channels_.store(dg, terms_);
    __syncwarp();
    if (lane_ != 0) return;
    T sum = terms_[0], term = T(0);
    for (int k = 1; k < p_.K; ++k) sum = sum + terms_[k];
    if (p_.gate != kda::Gate::none)
      sum = forwards_.through_gate(p_, load<T>(p_.g, stored_ * p_.K), head_, 0, sum,
                                   gate_amplitude<T>(p_, head_), term);
    const MutableTensor& to = tensor(Gradient::dg);
    store(sum, to.data, to.dtype, stored_);
    if (p_.gate == kda::Gate::none) return;
    work_.dg[row_ * work_.key_stride] =
        work_.bias_from_stored_gate ? load<T>(to.data, to.dtype, stored_) : sum;
    work_.amplitude_terms[row_] = T(0) + term;
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
      gates_[k] = forwards_.through_gate(p_, gates_[k], head_, k, terms_[k], amplitude, terms_[k]);
    channels_.load(gates_, dg);
    channels_.store(dg, to, stored_ * p_.K);
    if (work_.bias_from_stored_gate)
      channels_.over_elements([&](int r, int k) { dg[r] = load<T>(to.data, to.dtype, stored_ * p_.K + k); });
    channels_.store(dg, work_.dg + row_ * work_.key_stride);
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
      gradient == Gradient::dk
          ? load_key_part(member, part)
          : channels_.load(parts + (row_ + member * work_.head_step()) * work_.key_stride, part);
      channels_.over_elements([&](int r, int) { sum[r] = sum[r] + factor * part[r]; });
    }
    if (p_.qk_l2norm) {
      const KeyRow<T, rows> row(p_, input, query);
      T y[rows];
      const T reciprocal = forwards_.normalised(p_, work_, row, gradient, row_, y);
      const T along = row.template dot<is_fused>(sum, y);
      channels_.over_elements(
          [&](int r, int) { sum[r] = kda::through_l2_norm(sum[r], y[r], along, reciprocal); });
    }
    channels_.store(sum, tensor(gradient), query * p_.K);
  }

  /// r . e
  __device__ T prediction_times_error() const {
    const T *const r = work_.r + row_ * work_.value_stride, *const e = work_.e + row_ * work_.value_stride;
    T sum = lane_ < p_.V ? r[lane_] * e[lane_] : T(0);
#pragma unroll 1
    for (int v = lane_ + warp_lanes; v < p_.V; v += warp_lanes) sum = multiply_add<is_fused>(r[v], e[v], sum);
    return warp_sum(sum, p_.V < warp_lanes ? p_.V : warp_lanes);
  }
  __device__ const MutableTensor& tensor(Gradient gradient) const {
    return p_.gradients[static_cast<int>(gradient)];
  }
  const DeviceProblem& p_;
  const TokenGradients<T>& work_;
  const Forwards& forwards_;
  const LaneRow<rows> channels_;
  const std::size_t token_;
  const int local_, head_;
  const std::size_t row_, stored_;
  T *const terms_, *const gates_;
  int lane_;
};

template <class T, bool is_fused, int rows, class Forwards, bool relatives>
__global__ void __launch_bounds__(token_warps* warp_lanes)
    chain_rules(const __grid_constant__ DeviceProblem p, const __grid_constant__ TokenGradients<T> work,
                const __grid_constant__ Forwards forwards) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const std::size_t token = std::size_t{blockIdx.x} * token_warps + warp;
  if (token >= static_cast<std::size_t>(work.token_count)) return;
  ChainRules<T, is_fused, rows, Forwards, relatives>(p, work, forwards, token, blockIdx.y,
                                                     reinterpret_cast<T*>(memory) + 2 * warp * p.K)
      .run();
}

template <class T, bool is_fused, class Forwards>
struct ChainKernels {
  bool relatives;
  template <int rows>
  auto of() const {
    return relatives ? chain_rules<T, is_fused, rows, Forwards, true>
                     : chain_rules<T, is_fused, rows, Forwards, false>;
  }
};

template <bool is_fused, class T, class Forwards>
void launch_chain(const DeviceProblem& p, const TokenGradients<T>& work, const Forwards& forwards) {
  const bool relatives = p.strength != kda::Strength::head || p.decays < p.K;
  launch("backwards, chain rules", kernel_for_rows(p, ChainKernels<T, is_fused, Forwards>{relatives}),
         dim3((work.token_count + token_warps - 1) / token_warps, work.heads), token_warps * warp_lanes,
         2 * sizeof(T) * token_warps * p.K, p, work, forwards);
}

}  // namespace kda_check::cuda

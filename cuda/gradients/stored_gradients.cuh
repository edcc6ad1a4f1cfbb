// From the gradients of a log decay and of a write strength to those of gate and beta as they are stored,
// with any exponential. The rules are those of the CPU (kda/kernels/elements/gradient_rules.hpp).
#pragma once

#include "cuda/problem/gates.cuh"

namespace kda_check::cuda {

template <class T, class Exp>
__device__ T sigmoid_of(T z, const Exp& exp_of) {
  return kda::sigmoid_from(exp_of(-z));
}

/// Of the stored gate of channel k; `term`: what is added up to the gradient of the amplitude.
template <class T, class Exp>
__device__ T gate_gradient(const DeviceProblem& p, T gate, int head, int k, T dg, T amplitude,
                           const Exp& exp_of, T& term) {
  const T y = p.dt_bias.data == nullptr ? gate : gate + load<T>(p.dt_bias, std::size_t(head) * p.K + k);
  if (p.gate == kda::Gate::softplus) {
    term = kda::through_slope(dg, log_decay(p, gate, head, k, amplitude, exp_of));
    return kda::through_softplus(dg, amplitude, sigmoid_of(y, exp_of));
  }
  const T z = amplitude * y;
  const T gradient =
      kda::through_bounded(dg, amplitude, T(p.lower_bound), sigmoid_of(z, exp_of), sigmoid_of(-z, exp_of));
  term = kda::through_slope(gradient, y);
  return gradient;
}

/// Of stored beta, element `stored`.
template <class T, class Exp>
__device__ T strength_gradient(const DeviceProblem& p, T gradient, std::size_t stored, const Exp& exp_of) {
  if (!p.beta_sigmoid) return gradient;
  const T beta = load<T>(p.beta, stored);
  return kda::through_strength(gradient, p.allow_neg_eigval ? T(2) : T(1), sigmoid_of(beta, exp_of),
                               sigmoid_of(-beta, exp_of));
}

}  // namespace kda_check::cuda

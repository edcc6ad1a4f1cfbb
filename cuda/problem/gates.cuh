// Gates and write strengths: what is done to an element of g and beta before the recurrence sees it
// (docs/kda.md, "Preprocessing"), with any exponential, and with that of the problem.
#pragma once

#include "cuda/problem/problem.cuh"
#include "kda/kernels/elements/gradient_rules.hpp"

namespace kda_check::cuda {

/// The exponentials that kernels written for speed have.
struct FastExponential {
  Exponential kind;
  template <class T>
  __device__ T operator()(T x) const {
    return exponential(kind, x);
  }
};

/// exp(A_log), or 1.
template <class T, class Exp>
__device__ T gate_amplitude(const DeviceProblem& p, int head, const Exp& exp_of) {
  return p.A_log.data == nullptr ? T(1) : exp_of(load<T>(p.A_log, head));
}
template <class T>
__device__ T gate_amplitude(const DeviceProblem& p, int head) {
  return gate_amplitude<T>(p, head, FastExponential{p.exponential});
}

/// The natural log of the decay of channel k, from the stored gate.
template <class T, class Exp>
__device__ T log_decay(const DeviceProblem& p, T gate, int head, int k, T amplitude, const Exp& exp_of) {
  if (p.gate == kda::Gate::none) return gate;
  T y = gate;
  if (p.dt_bias.data != nullptr) y = y + load<T>(p.dt_bias, std::size_t(head) * p.K + k);
  if (p.gate == kda::Gate::lower_bound)  // lower_bound * sigmoid(A y)
    return T(p.lower_bound) * kda::sigmoid_from(exp_of(-(amplitude * y)));
  const T softplus = y > kda::softplus_threshold<T> ? y : log1p_of(exp_of(y));
  return -(amplitude * softplus);  // -A softplus(y)
}
template <class T>
__device__ T log_decay(const DeviceProblem& p, T gate, int head, int k, T amplitude) {
  return log_decay(p, gate, head, k, amplitude, FastExponential{p.exponential});
}

/// The write strength, from the stored beta.
template <class T, class Exp>
__device__ T write_strength(const DeviceProblem& p, T beta, const Exp& exp_of) {
  if (!p.beta_sigmoid) return beta;
  const T m = p.allow_neg_eigval ? T(2) : T(1);
  return m * kda::sigmoid_from(exp_of(-beta));  // m sigmoid(beta)
}
template <class T>
__device__ T write_strength(const DeviceProblem& p, T beta) {
  return write_strength(p, beta, FastExponential{p.exponential});
}

}  // namespace kda_check::cuda

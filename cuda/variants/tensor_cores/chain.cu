// gradients/chain.cuh with what the forward pass on tensor cores left.
#include "cuda/gradients/chain.cuh"
#include "cuda/variants/tensor_cores/backward.cuh"

namespace kda_check::cuda {

namespace {

/// What the forward pass made of q, k and g, with the norms that were left.
struct WithLeftNorms : MadeAgain<float, true> {
  const float *q_norm, *k_norm;  ///< [tokens][heads] reciprocal

  explicit WithLeftNorms(const TensorCoreLeft& left) : q_norm(left.q_norm), k_norm(left.k_norm) {}

  template <int rows>
  __device__ float normalised(const DeviceProblem& p, const TokenGradients<float>&,
                              const KeyRow<float, rows>& row, Gradient gradient, std::size_t at,
                              float (&y)[rows]) const {
    const float reciprocal = (gradient == Gradient::dq ? q_norm : k_norm)[at];
    row.scaled(reciprocal, y);
    return reciprocal;
  }
};

/// ... and the approximations of ChunkInputs.
struct AsOnTensorCores : WithLeftNorms {
  using WithLeftNorms::WithLeftNorms;

  __device__ float through_gate(const DeviceProblem& p, float gate, int head, int k, float dg,
                                float amplitude, float& term) const {
    const float gradient =
        gate_gradient(p, gate, head, k, dg, amplitude, FastExponential{p.exponential}, term);
    if (p.gate != kda::Gate::softplus) return gradient;
    const float y =
        p.dt_bias.data == nullptr ? gate : gate + load<float>(p.dt_bias, std::size_t(head) * p.K + k);
    term = kda::through_slope(dg, -(amplitude * (y > kda::softplus_threshold<float> ? y : fast_softplus(y))));
    return gradient;
  }
};

}  // namespace

void launch_tensor_core_chain(const DeviceProblem& p, const TokenGradients<float>& work,
                              const TensorCoreLeft& left) {
  launch_chain<true>(p, work, AsOnTensorCores(left));
}
void launch_split_chain(const DeviceProblem& p, const TokenGradients<float>& work,
                        const TensorCoreLeft& left) {
  launch_chain<true>(p, work, WithLeftNorms(left));
}

}  // namespace kda_check::cuda

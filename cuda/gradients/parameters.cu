// dA_log and ddt_bias (token_gradients.cuh). The order is that of the CPU: the tokens of a block upwards, the
// blocks of a sequence from the last, the sequences upwards.
#include "cuda/device/launch.cuh"
#include "cuda/gradients/token_gradients.cuh"
#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

namespace {

using kda::Gradient;

/// A block of tokens of one head; a thread for each channel, and the first one for the amplitude too.
template <class T>
__global__ void add_tokens(const __grid_constant__ DeviceProblem p,
                           const __grid_constant__ TokenGradients<T> work) {
  const TokenRange block = work.blocks[blockIdx.x];
  const int local = blockIdx.y, k = static_cast<int>(threadIdx.x);
  const std::size_t to = std::size_t{blockIdx.x} * work.heads + local;
  T bias = T(0), amplitude = T(0);
  for (std::uint32_t t = 0; t < block.count; ++t) {
    const std::size_t row = work.gradient_row(std::size_t{block.first} + t, local);
    if (k < p.decays) bias = bias + work.dg[row * work.key_stride + k];
    if (k == 0) amplitude = amplitude + work.amplitude_terms[row];
  }
  if (k < p.decays) work.bias_sums[to * p.decays + k] = bias;
  if (k == 0) work.amplitude_sums[to] = amplitude;
}

/// Over blocks of tokens and sequences: sums[block * stride].
template <class T>
__device__ T over_sequences(const TokenGradients<T>& work, const T* sums, std::size_t stride) {
  T total = T(0);
  for (int n = 0; n < work.sequence_count; ++n) {
    const PieceRange blocks = work.blocks_of[n];
    T part = T(0);
    for (std::uint32_t b = blocks.count; b > 0; --b)
      part = part + sums[(std::size_t{blocks.first} + b - 1) * stride];
    total = n == 0 ? part : total + part;
  }
  return total;
}

template <class T>
__global__ void add_blocks(const __grid_constant__ DeviceProblem p,
                           const __grid_constant__ TokenGradients<T> work) {
  const int local = blockIdx.x, head = work.first_head + local, k = static_cast<int>(threadIdx.x);
  const MutableTensor &bias = p.gradients[static_cast<int>(Gradient::ddt_bias)],
                      &amplitude = p.gradients[static_cast<int>(Gradient::dA_log)];
  const auto decays = static_cast<std::size_t>(p.decays);
  if (bias.data != nullptr && k < p.decays)
    store(over_sequences(work, work.bias_sums + local * decays + k, work.heads * decays), bias.data,
          bias.dtype, head * decays + k);
  if (amplitude.data != nullptr && k == 0)
    store(over_sequences(work, work.amplitude_sums + local, work.heads), amplitude.data, amplitude.dtype,
          head);
}

}  // namespace

template <class T>
void launch_backward_parameters(const DeviceProblem& p, const TokenGradients<T>& work, cudaStream_t stream) {
  if (p.gate == kda::Gate::none) return;
  launch_on(stream, "backwards, sums over tokens", add_tokens<T>, dim3(work.block_count, work.heads),
            widest_key, 0, p, work);
  launch_on(stream, "backwards, sums over blocks", add_blocks<T>, dim3(work.heads), widest_key, 0, p, work);
}
template void launch_backward_parameters<float>(const DeviceProblem&, const TokenGradients<float>&,
                                                cudaStream_t);
template void launch_backward_parameters<double>(const DeviceProblem&, const TokenGradients<double>&,
                                                 cudaStream_t);

}  // namespace kda_check::cuda

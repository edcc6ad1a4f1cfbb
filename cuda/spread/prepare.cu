// Inputs as emulations read them, and answers as they are stored.
#include "cuda/problem/gates.cuh"
#include "cuda/spread/emulation.cuh"

namespace kda_check::cuda {

namespace {

constexpr int element_threads = 256;

/// Element by element, what lies beyond a row zero: q, k, log decays, v; the sigmoids of beta.
__global__ void widen_kernel(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ EmulationWork work) {
  const std::size_t token = blockIdx.x;
  const int local = blockIdx.y, head = work.first_head + local;
  const std::size_t query = p.at(token, p.H, p.query_head(head)), value = p.at(token, p.HV, head),
                    row = work.token_of(local, token);
  const ExponentialOf exponential{p.exponential};
  const float amplitude = gate_amplitude<float>(p, head, exponential);
  for (int k = threadIdx.x; k < work.key_stride; k += blockDim.x) {
    const std::size_t to = row * work.key_stride + k;
    const bool there = k < p.K;
    work.q[to] = there ? load<float>(p.q, query * p.K + k) : 0;
    work.k[to] = there ? load<float>(p.k, query * p.K + k) : 0;
    work.g[to] = there ? log_decay(p, load<float>(p.g, value * p.K + k), head, k, amplitude, exponential) : 0;
  }
  for (int v = threadIdx.x; v < work.value_stride; v += blockDim.x)
    work.v[row * work.value_stride + v] = v < p.V ? load<float>(p.v, value * p.V + v) : 0;
  if (threadIdx.x == 0) work.beta[row] = write_strength(p, load<float>(p.beta, value), exponential);
}

/// A thread for each row of q and of k.
__global__ void normalise_kernel(const __grid_constant__ DeviceProblem p,
                                 const __grid_constant__ EmulationWork work) {
  const std::size_t row = std::size_t{blockIdx.x} * element_threads + threadIdx.x;
  if (row >= std::size_t(work.token_count) * work.heads) return;
  float* const x = (blockIdx.y == 0 ? work.q : work.k) + row * work.key_stride;
  float squares;
  kernels::dot_of_row(kernels::sums_of_rows(work.operations), x, x, p.K, &squares);
  const float norm = sqrtf(squares + 1e-6F), reciprocal = 1.0F / norm;
  for (int k = 0; k < p.K; ++k)
    x[k] = kda::rounded(p.casts.normalised, work.norm_by_reciprocal ? x[k] * reciprocal : x[k] / norm);
}

/// The channel of a head that remembers longest, of those that decay: the largest sum that is below 0.
__global__ void slowest_kernel(const __grid_constant__ EmulationWork work, int K) {
  extern __shared__ double sums[];
  const int local = blockIdx.x, decays = K / work.key_of_decay;
  for (int k = threadIdx.x; k < decays; k += blockDim.x) {
    const float* const g = work.g + work.token_of(local, 0) * work.key_stride + k;
    double sum = 0;
#pragma unroll 8
    for (int token = 0; token < work.token_count; ++token)
      sum += static_cast<double>(g[std::size_t(token) * work.key_stride]);
    sums[k] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int slowest = -1;
  for (int k = 0; k < decays; ++k)
    if (sums[k] < 0 && (slowest < 0 || sums[k] > sums[slowest])) slowest = k;
  work.slowest[work.first_head + local] = slowest;
}

__global__ void lengthen_kernel(const __grid_constant__ EmulationWork work, int K) {
  const std::size_t token = blockIdx.x;
  const int local = blockIdx.y, slowest = work.slowest[work.first_head + local];
  if (slowest < 0) return;
  const bool one = work.scaled == kda::ScaledDecays::slowest;
  const int first = one ? slowest * work.key_of_decay : 0, last = one ? first + work.key_of_decay : K;
  float* const g = work.g + work.token_of(local, token) * work.key_stride;
  for (int k = first + threadIdx.x; k < last; k += blockDim.x) g[k] *= work.factor;
}

/// The recurrence reads the query with its scale, and decays.
__global__ void scale_kernel(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ EmulationWork work) {
  const std::size_t i = std::size_t{blockIdx.x} * element_threads + threadIdx.x;
  if (i >= std::size_t(work.token_count) * work.heads * work.key_stride) return;
  work.q[i] = work.q[i] * static_cast<float>(p.scale);
  work.g[i] = kda::rounded(p.casts.decay, kernels::exponential_of(p.exponential, work.g[i]));
}

/// Number blockIdx.x of a sequence's states, head blockIdx.y.
__device__ std::size_t state_row(const DeviceProblem& p, const EmulationWork& work) {
  return work.state_of(blockIdx.y, blockIdx.x) * p.K * work.value_stride;
}

__global__ void load_states(const __grid_constant__ DeviceProblem p,
                            const __grid_constant__ EmulationWork work, Tensor from, float* states) {
  const std::size_t stored = std::size_t{blockIdx.x} * p.HV + work.first_head + blockIdx.y;
  float* const to = states + state_row(p, work);
  for (int e = threadIdx.x; e < p.K * work.value_stride; e += blockDim.x) {
    const int k = e / work.value_stride, v = e % work.value_stride;
    const bool there = from.data != nullptr && v < p.V;
    to[e] = there ? load<float>(from, state_element(p, stored, k, v)) : 0;
  }
}

__global__ void store_states(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ EmulationWork work, const float* states,
                             MutableTensor to) {
  const std::size_t stored = std::size_t{blockIdx.x} * p.HV + work.first_head + blockIdx.y;
  const float* const from = states + state_row(p, work);
  for (int e = threadIdx.x; e < p.K * p.V; e += blockDim.x)
    store(from[e / p.V * work.value_stride + e % p.V], to.data, to.dtype,
          state_element(p, stored, e / p.V, e % p.V));
}

__global__ void store_output(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ EmulationWork work) {
  const std::size_t token = blockIdx.x, row = work.token_of(blockIdx.y, token);
  for (int v = threadIdx.x; v < p.V; v += blockDim.x)
    store(work.o[row * work.value_stride + v], p.o.data, p.o.dtype,
          p.at(token, p.HV, work.first_head + blockIdx.y) * p.V + v);
}

dim3 blocks_of(std::size_t count, unsigned y = 1) {
  return dim3(static_cast<unsigned>((count + element_threads - 1) / element_threads), y);
}

}  // namespace

void launch_load_states(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work,
                        const Tensor& from, float* to) {
  launch_on(stream, "emulation, states that enter", load_states, dim3(work.sequence_count, work.heads),
            element_threads, 0, p, work, from, to);
}

void launch_store_states(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work,
                         const float* from, const MutableTensor& to) {
  launch_on(stream, "emulation, states that leave", store_states, dim3(work.sequence_count, work.heads),
            element_threads, 0, p, work, from, to);
}

void launch_emulation_prepare(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work) {
  const std::size_t rows = static_cast<std::size_t>(work.token_count) * static_cast<std::size_t>(work.heads);
  launch_on(stream, "emulation, inputs", widen_kernel, dim3(work.token_count, work.heads), 128, 0, p, work);
  launch_load_states(stream, p, work, p.initial_state, work.state);
  if (p.qk_l2norm)
    launch_on(stream, "emulation, norms", normalise_kernel, blocks_of(rows, 2), element_threads, 0, p, work);
  if (work.scaled != kda::ScaledDecays::none) {
    launch_on(stream, "emulation, slowest channels", slowest_kernel, dim3(work.heads), 128,
              sizeof(double) * static_cast<std::size_t>(p.K), work, p.K);
    launch_on(stream, "emulation, longer decays", lengthen_kernel, dim3(work.token_count, work.heads), 128, 0,
              work, p.K);
  }
  if (!work.chunk_form)
    launch_on(stream, "emulation, decays", scale_kernel,
              blocks_of(rows * static_cast<std::size_t>(work.key_stride)), element_threads, 0, p, work);
}

void launch_emulation_store(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work) {
  launch_on(stream, "emulation, output", store_output, dim3(work.token_count, work.heads), 128, 0, p, work);
  launch_store_states(stream, p, work, work.state, p.final_state);
}

}  // namespace kda_check::cuda

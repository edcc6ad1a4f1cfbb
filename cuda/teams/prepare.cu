// Inputs as the kernels of teams read them, and answers as they are stored.
#include "cuda/problem/gates.cuh"
#include "cuda/teams/work.cuh"

namespace kda_check::cuda {

namespace {

constexpr int element_threads = 256;

/// Element by element, what lies beyond a row zero: q, k, log decays, v; the sigmoids of beta.
template <class T>
__global__ void widen_kernel(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ TeamWork<T> work) {
  const std::size_t token = blockIdx.x;
  const int local = blockIdx.y, head = work.first_head + local;
  const std::size_t query = p.at(token, p.H, p.query_head(head)), value = p.at(token, p.HV, head),
                    row = work.token_of(local, token);
  const ExponentialOf exponential{p.exponential};
  const T amplitude = gate_amplitude<T>(p, head, exponential);
  for (int k = threadIdx.x; k < work.key_stride; k += blockDim.x) {
    const std::size_t to = row * work.key_stride + k;
    const bool there = k < p.K;
    work.q[to] = there ? load<T>(p.q, query * p.K + k) : T(0);
    work.k[to] = there ? load<T>(p.k, query * p.K + k) : T(0);
    work.g[to] = there ? log_decay(p, load<T>(p.g, value * p.K + k), head, k, amplitude, exponential) : T(0);
  }
  for (int v = threadIdx.x; v < work.value_stride; v += blockDim.x) {
    T x = v < p.V ? load<T>(p.v, value * p.V + v) : T(0);
    if (v < p.V && p.write.data != nullptr) x = load<T>(p.write, value * p.V + v) * x;
    work.v[row * work.value_stride + v] = x;
  }
  if (threadIdx.x == 0)
    work.beta[row] =
        p.strength == kda::Strength::gates ? T(1) : write_strength(p, load<T>(p.beta, value), exponential);
}

/// A thread for each row of q and of k.
template <class T>
__global__ void normalise_kernel(const __grid_constant__ DeviceProblem p,
                                 const __grid_constant__ TeamWork<T> work) {
  const std::size_t row = std::size_t{blockIdx.x} * element_threads + threadIdx.x;
  if (row >= std::size_t(work.token_count) * work.heads) return;
  T* const x = (blockIdx.y == 0 ? work.q : work.k) + row * work.key_stride;
  T squares;
  kernels::dot_of_row(kernels::sums_of_rows(work.operations), x, x, p.K, &squares);
  const T norm = square_root(squares + T(1e-6)), reciprocal = T(1) / norm;
  for (int k = 0; k < p.K; ++k)
    x[k] = kda::rounded(p.casts.normalised, work.norm_by_reciprocal ? x[k] * reciprocal : x[k] / norm);
}

template <class T>
__global__ void erase_kernel(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ TeamWork<T> work) {
  const std::size_t token = blockIdx.x, row = work.token_of(blockIdx.y, token),
                    stored = p.at(token, p.HV, work.first_head + blockIdx.y);
  for (int k = threadIdx.x; k < work.key_stride; k += blockDim.x) {
    const std::size_t at = row * work.key_stride + k;
    work.read[at] = k < p.K ? load<T>(p.erase, stored * p.K + k) * work.k[at] : T(0);
  }
}

/// The channel of a head that remembers longest, of those that decay: the largest sum that is below 0.
__global__ void slowest_kernel(const __grid_constant__ TeamWork<float> work, int K) {
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

__global__ void lengthen_kernel(const __grid_constant__ TeamWork<float> work, int K) {
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
                             const __grid_constant__ TeamWork<float> work) {
  const std::size_t i = std::size_t{blockIdx.x} * element_threads + threadIdx.x;
  if (i >= std::size_t(work.token_count) * work.heads * work.key_stride) return;
  work.q[i] = work.q[i] * static_cast<float>(p.scale);
  work.g[i] = kda::rounded(p.casts.decay, kernels::exponential_of(p.exponential, work.g[i]));
}

/// Where state blockIdx.x of head blockIdx.y is in an array.
template <class T>
__device__ std::size_t state_row(const DeviceProblem& p, const TeamWork<T>& work,
                                 const std::uint32_t* places) {
  const unsigned number = places == nullptr ? blockIdx.x : places[blockIdx.x];
  return work.state_of(blockIdx.y, static_cast<int>(number)) * p.K * work.value_stride;
}

template <class T>
__global__ void load_states(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamWork<T> work,
                            Tensor from, T* states, const std::uint32_t* places) {
  const std::size_t stored = std::size_t{blockIdx.x} * p.HV + work.first_head + blockIdx.y;
  T* const to = states + state_row(p, work, places);
  for (int e = threadIdx.x; e < p.K * work.value_stride; e += blockDim.x) {
    const int k = e / work.value_stride, v = e % work.value_stride;
    const bool there = from.data != nullptr && v < p.V;
    to[e] = there ? load<T>(from, state_element(p, stored, k, v)) : T(0);
  }
}

template <class T>
__global__ void store_states(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ TeamWork<T> work, const T* states, MutableTensor to,
                             const std::uint32_t* places) {
  const std::size_t stored = std::size_t{blockIdx.x} * p.HV + work.first_head + blockIdx.y;
  const T* const from = states + state_row(p, work, places);
  for (int e = threadIdx.x; e < p.K * p.V; e += blockDim.x)
    store(from[e / p.V * work.value_stride + e % p.V], to.data, to.dtype,
          state_element(p, stored, e / p.V, e % p.V));
}

template <class T>
__global__ void store_output(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ TeamWork<T> work) {
  const std::size_t token = blockIdx.x, row = work.token_of(blockIdx.y, token);
  for (int v = threadIdx.x; v < p.V; v += blockDim.x)
    store(work.o[row * work.value_stride + v], p.o.data, p.o.dtype,
          p.at(token, p.HV, work.first_head + blockIdx.y) * p.V + v);
}

dim3 blocks_of(std::size_t count, unsigned y = 1) {
  return dim3(static_cast<unsigned>((count + element_threads - 1) / element_threads), y);
}

/// Log decays a factor longer, and what the recurrence reads in place of them.
void launch_for_tokens(cudaStream_t stream, const DeviceProblem& p, const TeamWork<float>& work,
                       std::size_t rows) {
  if (work.scaled != kda::ScaledDecays::none) {
    launch_on(stream, "slowest channels", slowest_kernel, dim3(work.heads), 128,
              sizeof(double) * static_cast<std::size_t>(p.K), work, p.K);
    launch_on(stream, "longer decays", lengthen_kernel, dim3(work.token_count, work.heads), 128, 0, work,
              p.K);
  }
  if (!work.chunk_form)
    launch_on(stream, "decays", scale_kernel, blocks_of(rows * static_cast<std::size_t>(work.key_stride)),
              element_threads, 0, p, work);
}

}  // namespace

template <class T>
void launch_load_states(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work,
                        const Tensor& from, T* to, int count, const std::uint32_t* places) {
  launch_on(stream, "states that enter", load_states<T>, dim3(count, work.heads), element_threads, 0, p, work,
            from, to, places);
}

template <class T>
void launch_store_states(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work, const T* from,
                         const MutableTensor& to, int count, const std::uint32_t* places) {
  if (to.data != nullptr)
    launch_on(stream, "states that leave", store_states<T>, dim3(count, work.heads), element_threads, 0, p,
              work, from, to, places);
}

template <class T>
void launch_team_inputs(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work) {
  const std::size_t rows = static_cast<std::size_t>(work.token_count) * static_cast<std::size_t>(work.heads);
  const dim3 tokens(work.token_count, work.heads);
  launch_on(stream, "inputs", widen_kernel<T>, tokens, 128, 0, p, work);
  if (p.qk_l2norm)
    launch_on(stream, "norms", normalise_kernel<T>, blocks_of(rows, 2), element_threads, 0, p, work);
  if (work.read != nullptr) launch_on(stream, "erased keys", erase_kernel<T>, tokens, 128, 0, p, work);
  if constexpr (sizeof(T) == sizeof(float)) launch_for_tokens(stream, p, work, rows);
}

template <class T>
void launch_team_output(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work) {
  launch_on(stream, "output", store_output<T>, dim3(work.token_count, work.heads), 128, 0, p, work);
}

#define KDA_CHECK_INSTANTIATE(T)                                                                          \
  template void launch_load_states(cudaStream_t, const DeviceProblem&, const TeamWork<T>&, const Tensor&, \
                                   T*, int, const std::uint32_t*);                                        \
  template void launch_store_states(cudaStream_t, const DeviceProblem&, const TeamWork<T>&, const T*,     \
                                    const MutableTensor&, int, const std::uint32_t*);                     \
  template void launch_team_inputs(cudaStream_t, const DeviceProblem&, const TeamWork<T>&);               \
  template void launch_team_output(cudaStream_t, const DeviceProblem&, const TeamWork<T>&);
KDA_CHECK_INSTANTIATE(float)
KDA_CHECK_INSTANTIATE(double)
#undef KDA_CHECK_INSTANTIATE

}  // namespace kda_check::cuda

// What goes into a backward pass, and from the gradients of its recurrence to those of the tensors as they
// are stored: sums over value heads, norm, gate and sigmoid backwards in any order of sums.
#include "cuda/gradients/stored_gradients.cuh"
#include "cuda/problem/gates.cuh"
#include "cuda/teams/gradient_work.cuh"

namespace kda_check::cuda {

namespace {

using kda::Gradient;

template <class T>
__global__ void load_output_gradient(const __grid_constant__ DeviceProblem p,
                                     const __grid_constant__ TeamGradientWork<T> work) {
  const std::size_t token = blockIdx.x, value = p.at(token, p.HV, work.first_head + blockIdx.y) * p.V,
                    row = work.token_of(blockIdx.y, token) * work.value_stride;
  const kda::Rounding rounding = work.chunk_form ? p.casts.operands : kda::Rounding::none;
  for (int v = threadIdx.x; v < work.value_stride; v += blockDim.x) {
    const bool there = v < p.V && p.output_gradient.data != nullptr;
    work.d_o[row + v] = there ? kda::rounded(rounding, load<T>(p.output_gradient, value + v)) : T(0);
  }
}

__device__ const MutableTensor& tensor(const DeviceProblem& p, Gradient gradient) {
  return p.gradients[static_cast<int>(gradient)];
}
__device__ void put(const MutableTensor& to, std::size_t at, float x) { store(x, to.data, to.dtype, at); }

/// dv, dbeta and dg of one token of a value head.
__global__ void value_head_kernel(const __grid_constant__ DeviceProblem p,
                                  const __grid_constant__ TeamGradientWork<float> work) {
  __shared__ float terms[widest_key];
  const std::size_t token = blockIdx.x;
  const int local = blockIdx.y, head = work.first_head + local;
  const std::size_t row = work.token_of(local, token), stored = p.at(token, p.HV, head);
  const ExponentialOf exponential{p.exponential};
  for (int v = threadIdx.x; v < p.V; v += blockDim.x)
    put(tensor(p, Gradient::dv), stored * p.V + v, work.written[row * work.value_stride + v]);
  if (threadIdx.x == 0)
    put(tensor(p, Gradient::dbeta), stored, strength_gradient(p, work.dbeta[row], stored, exponential));

  const MutableTensor& to = tensor(p, Gradient::dg);
  float* const dg = work.dg + row * work.key_stride;  // then of the stored gate
  const float amplitude = gate_amplitude<float>(p, head, exponential);
  for (int k = threadIdx.x; k < p.K; k += blockDim.x) {
    const std::size_t at = stored * p.K + k;
    if (p.gate == kda::Gate::none) {
      put(to, at, dg[k]);
      continue;
    }
    const float gradient =
        gate_gradient(p, load<float>(p.g, at), head, k, dg[k], amplitude, exponential, terms[k]);
    put(to, at, gradient);
    dg[k] = work.sums.bias_from_stored_gate ? load<float>(to.data, to.dtype, at) : gradient;
  }
  if (p.gate == kda::Gate::none) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (int k = 0; k < p.K; ++k) sum = sum + terms[k];
  work.sums.amplitude_terms[row] = sum;
}

constexpr int norm_rows = 16, norm_threads = 128;

/// dq (blockIdx.z == 0) or dk of some tokens of a query head: a thread has the sums of a row.
__global__ void __launch_bounds__(norm_threads)
    query_head_kernel(const __grid_constant__ DeviceProblem p,
                      const __grid_constant__ TeamGradientWork<float> work) {
  extern __shared__ __align__(16) float memory[];  // [3][norm_rows][K + 1]: rows in different banks
  __shared__ float norms[norm_rows], along[norm_rows];
  const bool is_query = blockIdx.z == 0;
  const int stride = p.K + 1, first = static_cast<int>(blockIdx.x) * norm_rows,
            rows = min(norm_rows, work.token_count - first),
            leader = static_cast<int>(blockIdx.y) * work.group,
            query_head = p.query_head(work.first_head + leader), mine = static_cast<int>(threadIdx.x);
  float *const gradient = memory, *const x = gradient + norm_rows * stride, *const y = x + norm_rows * stride;
  const float* const parts = is_query ? work.dq : work.dk;
  const float factor = is_query ? work.sums.dq_factor : 1.0F;
  const auto stored = [&](std::size_t row, std::size_t k) {
    return p.at(first + row, p.H, query_head) * p.K + k;
  };
  kernels::each(rows, p.K, [&](std::size_t row, std::size_t k) {
    float sum = 0;
    for (int member = 0; member < work.group; ++member) {
      const float part = factor * parts[work.token_of(leader + member, first + row) * work.key_stride + k];
      sum = member == 0 ? part : sum + part;
    }
    gradient[row * stride + k] = sum;
    x[row * stride + k] = load<float>(is_query ? p.q : p.k, stored(row, k));
  });
  if (p.qk_l2norm) {
    const kernels::SumOrder order = kernels::sums_of_rows(work.operations);
    if (mine < rows) {
      float squares;
      kernels::dot_of_row(order, x + mine * stride, x + mine * stride, p.K, &squares);
      norms[mine] = sqrtf(squares + 1e-6F);
    }
    __syncthreads();
    kernels::each(rows, p.K, [&](std::size_t row, std::size_t k) {
      const float norm = norms[row], element = x[row * stride + k];
      y[row * stride + k] = kda::rounded(p.casts.normalised,
                                         work.norm_by_reciprocal ? element * (1.0F / norm) : element / norm);
    });
    if (mine < rows)
      kernels::dot_of_row(order, gradient + mine * stride, y + mine * stride, p.K, &along[mine]);
    __syncthreads();
    kernels::each(rows, p.K, [&](std::size_t row, std::size_t k) {
      float& element = gradient[row * stride + k];
      element = kda::through_l2_norm(element, y[row * stride + k], along[row], 1.0F / norms[row]);
    });
  }
  const MutableTensor& to = tensor(p, is_query ? Gradient::dq : Gradient::dk);
  kernels::each(rows, p.K,
                [&](std::size_t row, std::size_t k) { put(to, stored(row, k), gradient[row * stride + k]); });
}

}  // namespace

template <class T>
void launch_output_gradient(cudaStream_t stream, const DeviceProblem& p, const TeamGradientWork<T>& work) {
  launch_on(stream, "do", load_output_gradient<T>, dim3(work.token_count, work.heads), 128, 0, p, work);
}
template void launch_output_gradient(cudaStream_t, const DeviceProblem&, const TeamGradientWork<float>&);
template void launch_output_gradient(cudaStream_t, const DeviceProblem&, const TeamGradientWork<double>&);

void launch_gradient_chain(cudaStream_t stream, const DeviceProblem& p, const TeamGradientWork<float>& work) {
  launch_on(stream, "gates and strengths", value_head_kernel, dim3(work.token_count, work.heads), 128, 0, p,
            work);
  launch_on(stream, "norms backwards", query_head_kernel,
            dim3((work.token_count + norm_rows - 1) / norm_rows, work.heads / work.group, 2), norm_threads,
            sizeof(float) * 3 * norm_rows * static_cast<std::size_t>(p.K + 1), p, work);
  launch_backward_parameters<float>(p, work.sums, stream);
}

}  // namespace kda_check::cuda

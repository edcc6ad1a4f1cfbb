// gpu-recurrent and gpu-chunk: what the kernels under cuda/ take, from a Problem and RunOptions.
#include "cuda/gpu.hpp"

#include <utility>

#include "kda/gpu_inputs.hpp"
#include "kda/jobs.hpp"
#include "kda/variants.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::kda {

namespace {

cuda::Output output(tensor::Tensor& tensor) { return {tensor.dtype(), tensor.data(), tensor.size()}; }

/// Everything but where results go.
cuda::Request request_of(cuda::Kernel kernel, const Problem& problem, const RunOptions& options) {
  cuda::Request request;
  set_inputs(request, problem);
  const bool chunk = kernel == cuda::Kernel::chunk;
  request.is_fp64 = options.dtype == numeric::DType::fp64;
  request.is_fused = options.arithmetic.contraction == Contraction::fused;
  request.exponential = options.arithmetic.exponential;
  request.casts = cast_points(options.arithmetic, options.dtype, chunk && problem.beta_is_16_bit(), chunk);
  request.decay = options.arithmetic.decay, request.tail = options.arithmetic.tail;
  request.chunk_size = options.chunk_size;
  return request;
}
/// Everything but where the stages go.
cuda::Request request_of(cuda::Kernel kernel, const Problem& problem, const RunOptions& options,
                         Answer& answer) {
  cuda::Request request = request_of(kernel, problem, options);
  request.o = output(answer.o), request.final_state = output(answer.final_state);
  return request;
}
cuda::Request backward_request_of(const Problem& problem, const RunOptions& options,
                                  GradientTensors& gradients) {
  cuda::Request request = request_of(cuda::Kernel::recurrent_backward, problem, options);
  set_output_gradients(request, problem);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (!gradients[i].empty()) request.gradients[i] = output(gradients[i]);
  return request;
}

}  // namespace

std::string gpu_unavailable() { return cuda::unavailable(); }
std::string gpu_device_name() { return cuda::device_name(); }
double gpu_copy_bandwidth() { return cuda::copy_bandwidth(); }

std::string gpu_unsupported(bool chunk, const Outline& problem, const RunOptions& options) {
  const Arithmetic& arithmetic = options.arithmetic;
  if (arithmetic.exponential != Exponential::cuda && arithmetic.exponential != Exponential::cuda_fast)
    return "GPU variants have exponential=cuda and cuda-fast";
  if (options.dtype == numeric::DType::fp64 && arithmetic.exponential != Exponential::cuda)
    return "this exponential exists in fp32 only";
  if (arithmetic.reduction.kind != ReductionKind::simt)
    return "GPU variants add in one order, reduction=simt";
  const cuda::Kernel kernel = chunk ? cuda::Kernel::chunk : cuda::Kernel::recurrent;
  const Dimensions& d = problem.dimensions;
  std::string shape = cuda::unsupported_shape(
      kernel, {options.dtype == numeric::DType::fp64, d.B * d.T, d.HV, d.K, d.V, options.chunk_size});
  if (!chunk || !shape.empty()) return shape;
  const bool anchored = arithmetic.decay == DecayForm::anchor_pair ||
                        arithmetic.decay == DecayForm::anchor_first ||
                        arithmetic.decay == DecayForm::anchor_mid;
  if (!anchored || arithmetic.anchor_rows != 16)
    return "gpu-chunk has decay=anchor-pair:16, anchor-first:16 and anchor-mid:16";
  if (arithmetic.inverse != InverseForm::blocks || arithmetic.inverse_rows != 16)
    return "gpu-chunk has inverse=blocks:16";
  if (options.stages.given != nullptr) return "gpu-chunk takes no stages from elsewhere";
  return {};
}

Answer run_gpu_recurrent(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype);
  cuda::run(cuda::Kernel::recurrent, request_of(cuda::Kernel::recurrent, problem, options, answer));
  return answer;
}

GradientTensors run_gpu_recurrent_backward(const Problem& problem, const RunOptions& options) {
  GradientTensors gradients = allocate_gradients(problem, options.dtype);
  cuda::run(cuda::Kernel::recurrent_backward, backward_request_of(problem, options, gradients));
  return gradients;
}

Answer run_gpu_chunk(const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype);
  cuda::Request request = request_of(cuda::Kernel::chunk, problem, options, answer);
  StageTensors* const stages = options.stages.computed;
  tensor::Tensor h;  // as the kernels write it, where the problem has its states the other way round
  if (stages != nullptr) {
    for (std::size_t s = 0; s < forward_stage_count; ++s) request.stages[s] = output((*stages)[s]);
    constexpr auto at = static_cast<std::size_t>(Stage::h);
    if (problem.options.state_v_first) {
      tensor::Shape shape = (*stages)[at].shape();
      std::swap(shape[shape.size() - 2], shape.back());
      h = tensor::Tensor("h", (*stages)[at].dtype(), std::move(shape));
      request.stages[at] = output(h);
    }
  }
  cuda::run(cuda::Kernel::chunk, request);
  if (!h.empty()) (*stages)[static_cast<std::size_t>(Stage::h)] = tensor::transposed(h);
  return answer;
}

std::vector<double> time_gpu_backward(const Problem& problem, const RunOptions& options, int repeats) {
  GradientTensors gradients = allocate_gradients(problem, options.dtype);
  return cuda::time(cuda::Kernel::recurrent_backward, backward_request_of(problem, options, gradients),
                    repeats);
}

std::vector<double> time_gpu(bool chunk, const Problem& problem, const RunOptions& options, int repeats) {
  Answer answer = allocate_answer(problem, options.dtype);
  const cuda::Kernel kernel = chunk ? cuda::Kernel::chunk : cuda::Kernel::recurrent;
  return cuda::time(kernel, request_of(kernel, problem, options, answer), repeats);
}

}  // namespace kda_check::kda

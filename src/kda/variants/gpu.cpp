// gpu-recurrent and gpu-chunk: what the kernels under cuda/ take, from a Problem and RunOptions.
#include "cuda/variants/gpu.hpp"
#include "cuda/variants/decoding/decoding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kda/arithmetic/gpu_words.hpp"
#include "kda/arithmetic/tensor_core_limits.hpp"
#include "kda/gpu/inputs.hpp"
#include "kda/pool/pool.hpp"
#include "kda/problem/jobs.hpp"
#include "kda/problem/shapes.hpp"
#include "kda/shards/gpu_segments.hpp"
#include "kda/variants/decoding.hpp"
#include "kda/variants/variants.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::kda {

namespace {

cuda::Output output(tensor::Tensor& tensor) { return {tensor.dtype(), tensor.data(), tensor.size()}; }

bool runs_on_tensor_cores(const Arithmetic& arithmetic) { return is_by_lanes(arithmetic.reduction); }

cuda::Kernel forward_kernel(bool chunk) { return chunk ? cuda::Kernel::chunk : cuda::Kernel::recurrent; }
cuda::Kernel backward_kernel(bool chunk) {
  return chunk ? cuda::Kernel::chunk_backward : cuda::Kernel::recurrent_backward;
}

/// A request with what it points to beside the problem.
template <class Plain>
struct With : Plain {
  WidenedDecays widened;
};
using Request = With<cuda::Request>;

/// Everything but where results go.
template <class Plain = cuda::Request>
With<Plain> request_of(bool chunk, const Problem& problem, const RunOptions& options) {
  With<Plain> request;
  request.widened = set_inputs(request, problem);
  request.is_fp64 = options.dtype == numeric::DType::fp64;
  request.is_fused = options.arithmetic.contraction == Contraction::fused;
  request.exponential = options.arithmetic.exponential;
  request.casts = cast_points(options.arithmetic, options.dtype, chunk && problem.beta_is_16_bit(), chunk);
  request.arithmetic = options.arithmetic, request.chunk_size = options.chunk_size;
  request.on_tensor_cores = chunk && runs_on_tensor_cores(options.arithmetic);
  return request;
}
/// Everything but where the stages go.
Request request_of(bool chunk, const Problem& problem, const RunOptions& options, Answer& answer) {
  Request request = request_of(chunk, problem, options);
  request.o = output(answer.o), request.final_state = output(answer.final_state);
  return request;
}
Request request_of(bool chunk, const Problem& problem, const RunOptions& options,
                   GradientTensors& gradients) {
  Request request = request_of(chunk, problem, options);
  set_output_gradients(request, problem);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (!gradients[i].empty()) request.gradients[i] = output(gradients[i]);
  return request;
}

/// Stages [first, last) that a run is asked for, as the kernels write them: states turned where the problem
/// has them the other way round.
class RequestedStages {
 public:
  RequestedStages(const Problem& problem, StageTensors* stages, std::size_t first, std::size_t last,
                  cuda::Request& request)
      : stages_(stages) {
    if (stages == nullptr) return;
    for (std::size_t s = first; s < last; ++s) {
      tensor::Tensor& stage = (*stages)[s];
      const bool turned =
          problem.options.state_v_first && row_of(static_cast<Stage>(s)).shape == StageShape::state;
      if (turned) {
        tensor::Shape shape = stage.shape();
        std::swap(shape[shape.size() - 2], shape.back());
        turned_[s] = tensor::Tensor(stage.name(), stage.dtype(), std::move(shape));
      }
      request.stages[s] = output(turned ? turned_[s] : stage);
    }
  }
  void finish() const {
    for (std::size_t s = 0; s < turned_.size(); ++s)
      if (!turned_[s].empty()) (*stages_)[s] = tensor::transposed(turned_[s]);
  }

 private:
  StageTensors* stages_;
  StageTensors turned_;
};

/// Of a call whose states stay in `pool`, which is changed.
With<cuda::DecodingRequest> decoding_request(const Problem& problem, const RunOptions& options,
                                             tensor::Tensor& o, tensor::Tensor& pool) {
  auto request = request_of<cuda::DecodingRequest>(false, problem, options);
  request.initial_state = {};
  request.o = output(o), request.pool = output(pool);
  for (const PoolPiece& piece : problem.pool->pieces)
    request.slots.push_back(static_cast<std::uint32_t>(piece.to));
  return request;
}

tensor::Tensor output_of(const Problem& problem, numeric::DType dtype) {
  return {"o", dtype, shape_of("o", problem)};
}

Answer run_decoding(const Problem& problem, const RunOptions& options) {
  Answer answer;
  answer.o = output_of(problem, options.dtype), answer.pool = problem.pool->states.clone();
  const auto request = decoding_request(problem, options, answer.o, answer.pool);
  cuda::run_decoding(request);
  const std::vector<std::size_t> slots(request.slots.begin(), request.slots.end());
  answer.final_state = tensor::picked(answer.pool, 0, slots).named("final_state");
  return answer;
}

bool is_anchored(const Arithmetic& arithmetic) {
  return arithmetic.anchor_rows == 16 &&
         (arithmetic.decay == DecayForm::anchor_pair || arithmetic.decay == DecayForm::anchor_first ||
          arithmetic.decay == DecayForm::anchor_mid);
}

std::string lacks_on_tensor_cores(const Outline& problem, const RunOptions& options) {
  const Arithmetic& arithmetic = options.arithmetic;
  if (arithmetic.segments.merge != SegmentMerge::none)
    return "on tensor cores gpu-chunk computes sequences whole, segments=none";
  const bool splits = arithmetic.reduction.kind == ReductionKind::split;
  const std::string preset = splits ? "h100-mma3" : "h100-mma";
  Arithmetic computed = arithmetic;
  set_axis(computed, preset);
  if (computed != arithmetic || !is_anchored(arithmetic))
    return "on tensor cores gpu-chunk has the arithmetic of the preset " + preset +
           ", with decay=anchor-pair:16, anchor-first:16 or anchor-mid:16";
  const auto is_stored = [&](std::string_view input) { return problem.dtype_of(input) == options.dtype; };
  if (!splits &&
      (numeric::format_of(options.dtype).bytes != 2 || !is_stored("q") || !is_stored("k") || !is_stored("v")))
    return "on tensor cores h100-mma computes with q, k and v stored in bf16 or fp16, and in that dtype";
  const Dimensions& d = problem.dimensions;
  if (d.strength == Strength::gates) return "on tensor cores gpu-chunk has no erase and write gates";
  if (splits && d.K > narrow_tensor_core_key)
    return fmt::format("with operands that are split gpu-chunk has K up to {}", narrow_tensor_core_key);
  return cuda::unsupported_on_tensor_cores({false, d.B * d.T, d.HV, d.K, d.V, options.chunk_size});
}

cuda::Segments segments_of(bool chunk, const Problem& problem, const RunOptions& options) {
  return chunk ? segments_on_device(problem, options) : cuda::Segments();
}

Answer run_on_devices(PeerGroup& devices, const Problem& problem, const RunOptions& options) {
  Answer answer = allocate_answer(problem, options.dtype);
  on_devices(devices, problem, options, [&](const DeviceShare& share, std::size_t) {
    Answer own = allocate_answer(share.problem(), options.dtype);
    cuda::run(cuda::Kernel::chunk, request_of(true, share.problem(), options, own), share.segments());
    share.store(own, answer);
  });
  return answer;
}

/// Of each repeat the seconds of the device that took longest.
std::vector<double> time_on_devices(PeerGroup& devices, const Problem& problem, const RunOptions& options,
                                    int repeats) {
  std::vector<std::vector<double>> seconds(devices.count());
  on_devices(devices, problem, options, [&](const DeviceShare& share, std::size_t rank) {
    Answer own = allocate_answer(share.problem(), options.dtype);
    seconds[rank] = cuda::time(cuda::Kernel::chunk, request_of(true, share.problem(), options, own),
                               share.segments(), repeats);
  });
  std::vector<double> longest = seconds[0];
  for (const std::vector<double>& of_device : seconds)
    std::ranges::transform(of_device, longest, longest.begin(),
                           [](double a, double b) { return std::max(a, b); });
  return longest;
}

}  // namespace

std::string gpu_unsupported(bool chunk, const Outline& problem, const RunOptions& options) {
  const Arithmetic& arithmetic = options.arithmetic;
  if (problem.dimensions.checkpoints > 0) return "GPU variants store no checkpoints";
  if (chunk && options.stages.given != nullptr) return "gpu-chunk takes no stages from elsewhere";
  if (chunk && runs_on_tensor_cores(arithmetic)) return lacks_on_tensor_cores(problem, options);
  if (arithmetic.exponential != Exponential::cuda && arithmetic.exponential != Exponential::cuda_fast)
    return "GPU variants have exponential=cuda and cuda-fast";
  if (options.dtype == numeric::DType::fp64 && arithmetic.exponential != Exponential::cuda)
    return "this exponential exists in fp32 only";
  if (arithmetic.reduction.kind != ReductionKind::simt)
    return "GPU variants add in one order, reduction=simt";
  Arithmetic of_part = arithmetic;
  if (chunk) of_part.segments = {};  // emulations alone have no parts
  const CastPoints casts = cast_points(arithmetic, options.dtype, false, chunk);
  if (const std::string_view key = cpu_only_key(of_part, casts); !key.empty())
    return "this value of " + std::string(key) + " is computed on the CPU alone";
  const Dimensions& d = problem.dimensions;
  std::string shape = cuda::unsupported_shape(
      forward_kernel(chunk),
      {options.dtype == numeric::DType::fp64, d.B * d.T, d.HV, d.K, d.V, options.chunk_size});
  if (!chunk || !shape.empty()) return shape;
  if (!is_anchored(arithmetic))
    return "gpu-chunk has decay=anchor-pair:16, anchor-first:16 and anchor-mid:16";
  if (arithmetic.inverse != InverseForm::blocks || arithmetic.inverse_rows != 16)
    return "gpu-chunk has inverse=blocks:16";
  return {};
}

std::string gpu_lacks_gradients(const Arithmetic& arithmetic, const Dimensions& dimensions) {
  if (!runs_on_tensor_cores(arithmetic) || dimensions.K <= narrow_tensor_core_key) return {};
  return fmt::format("no backward pass on tensor cores with K above {}", narrow_tensor_core_key);
}

bool decodes_in_place(const Problem& problem, const RunOptions& options) {
  const PoolCall* const call = problem.pool.get();
  return call != nullptr && call->ring.empty() && call->states.dtype() == numeric::DType::fp32 &&
         std::ranges::all_of(
             call->pieces,
             [](const PoolPiece& piece) { return piece.from == piece.to && !piece.from_zero; }) &&
         cuda::has_decoding(request_of(false, problem, options));
}

StepSeconds time_decoding(const Problem& problem, const RunOptions& options, int repeats) {
  tensor::Tensor o = output_of(problem, options.dtype), pool = problem.pool->states.clone();
  cuda::StepSeconds found = cuda::time_decoding(decoding_request(problem, options, o, pool), repeats);
  return {std::move(found.graph), std::move(found.launches)};
}

Answer run_gpu(bool chunk, const Problem& problem, const RunOptions& options) {
  if (!chunk && decodes_in_place(problem, options)) return run_decoding(problem, options);
  if (PeerGroup* const devices = chunk ? devices_of(options) : nullptr)
    return run_on_devices(*devices, problem, options);
  Answer answer = allocate_answer(problem, options.dtype);
  Request request = request_of(chunk, problem, options, answer);
  const RequestedStages stages(problem, chunk ? options.stages.computed : nullptr, 0, forward_stage_count,
                               request);
  cuda::run(forward_kernel(chunk), request, segments_of(chunk, problem, options));
  stages.finish();
  return answer;
}

GradientTensors run_gpu_backward(bool chunk, const Problem& problem, const RunOptions& options) {
  GradientTensors gradients = allocate_gradients(problem, options.dtype);
  Request request = request_of(chunk, problem, options, gradients);
  const RequestedStages stages(problem, chunk ? options.stages.computed : nullptr, forward_stage_count,
                               stage_count, request);
  cuda::run(backward_kernel(chunk), request, segments_of(chunk, problem, options));
  stages.finish();
  return gradients;
}

std::vector<double> time_gpu(bool chunk, const Problem& problem, const RunOptions& options, int repeats) {
  if (PeerGroup* const devices = chunk ? devices_of(options) : nullptr)
    return time_on_devices(*devices, problem, options, repeats);
  Answer answer = allocate_answer(problem, options.dtype);
  return cuda::time(forward_kernel(chunk), request_of(chunk, problem, options, answer),
                    segments_of(chunk, problem, options), repeats);
}

std::vector<double> time_gpu_backward(bool chunk, const Problem& problem, const RunOptions& options,
                                      int repeats) {
  GradientTensors gradients = allocate_gradients(problem, options.dtype);
  return cuda::time(backward_kernel(chunk), request_of(chunk, problem, options, gradients),
                    segments_of(chunk, problem, options), repeats);
}

}  // namespace kda_check::kda

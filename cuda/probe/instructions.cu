// Approximate functions, a thread for each input; answers come down while the next are computed.
#include "cuda/probe/instructions.hpp"

#include <algorithm>

#include "cuda/arithmetic/approximations.cuh"
#include "cuda/device/host_memory.hpp"
#include "cuda/device/launch.cuh"
#include "cuda/device/memory.hpp"
#include "cuda/device/stream.hpp"

namespace kda_check::cuda {

namespace {

using numeric::h100::Function, numeric::h100::Inputs;

__device__ float answer(Function function, float x, float y) {
  switch (function) {
    case Function::ex2_ftz:
      return ex2_ftz(x);
    case Function::ex2:
      return ex2(x);
    case Function::exp2f:
      return ::exp2f(x);
    case Function::expf:
      return ::expf(x);
    case Function::fast_expf:
      return __expf(x);
    case Function::lg2_ftz:
      return lg2_ftz(x);
    case Function::lg2:
      return lg2(x);
    case Function::rcp_ftz:
      return rcp_ftz(x);
    case Function::rcp:
      return rcp(x);
    case Function::rsqrt_ftz:
      return rsqrt_ftz(x);
    case Function::rsqrt:
      return rsqrt(x);
    case Function::sqrt_ftz:
      return sqrt_ftz(x);
    case Function::sqrt:
      return sqrt_approx(x);
    case Function::tanh:
      return tanh_approx(x);
    case Function::div_full_ftz:
      return div_full_ftz(x, y);
    case Function::div_full:
      break;
  }
  return div_full(x, y);
}

__global__ void evaluate_kernel(Function function, Inputs inputs, std::uint64_t first, std::size_t count,
                                float* answers) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const numeric::h100::Operands operands = numeric::h100::operands_of(inputs, first + i);
  answers[i] = answer(function, __uint_as_float(operands.x), __uint_as_float(operands.y));
}

constexpr std::size_t block_answers = std::size_t{1} << 24, slots = 2;
constexpr int threads = 256;

}  // namespace

void evaluate(const FunctionRequest& request, const AnswerSink& sink) {
  PinnedMemory host[slots];  // kept until the stream has ended
  DeviceMemory device[slots];
  const std::size_t room = static_cast<std::size_t>(std::min<std::uint64_t>(block_answers, request.count));
  for (std::size_t slot = 0; slot < slots; ++slot) {
    host[slot].reserve(room * sizeof(float));
    device[slot] = DeviceMemory("answers", room * sizeof(float));
  }
  const Stream stream;
  const Mark done[slots];
  const auto count_from = [&](std::uint64_t first) {
    return static_cast<std::size_t>(std::min<std::uint64_t>(room, request.count - first));
  };
  const auto hand_out = [&](std::uint64_t first, std::size_t slot) {
    done[slot].wait();
    sink(first, {host[slot].as<float>(), count_from(first)});
  };
  std::size_t slot = 0;
  for (std::uint64_t first = 0; first < request.count; first += room, slot = 1 - slot) {
    const std::size_t count = count_from(first);
    launch_on(stream.get(), "evaluating a function", evaluate_kernel,
              dim3(static_cast<unsigned>((count + threads - 1) / threads)), threads, 0, request.function,
              request.inputs, first, count, device[slot].as<float>());
    check(cudaMemcpyAsync(host[slot].as<float>(), device[slot].data(), count * sizeof(float),
                          cudaMemcpyDeviceToHost, stream.get()),
          "downloading answers");
    done[slot].set(stream);
    if (first > 0) hand_out(first - room, 1 - slot);
  }
  if (request.count > 0) hand_out((request.count - 1) / room * room, 1 - slot);
  for (const DeviceMemory& memory : device) memory.check_canaries();
}

}  // namespace kda_check::cuda

#include "cuda/device/check.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace kda_check::cuda {

namespace {

/// What a kernel of ours does to a device that is well.
bool is_our_fault(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
      return true;
    default:
      return false;
  }
}

std::string hint_for(cudaError_t status) {
  if (is_our_fault(status)) return "please report it with the command line";
  if (status == cudaErrorMemoryAllocation) return "a smaller shape, or a GPU that nobody else uses";
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion)
    return fmt::format("this build wants a driver for CUDA {}", CUDART_VERSION / 1000);
  return "nvidia-smi says what state the device is in";
}

}  // namespace

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch reports this failure again
  throw Error(is_our_fault(status) ? ErrorKind::internal : ErrorKind::environment,
              fmt::format("GPU: {}: {}", doing, cudaGetErrorString(status)), {}, hint_for(status));
}

}  // namespace kda_check::cuda

#include "check.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace kda_check::cuda {

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  std::string hint;
  if (status == cudaErrorMemoryAllocation) {
    hint = "a smaller shape, or a GPU that nobody else uses";
  } else if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion) {
    hint = "this build has kernels for sm_80, sm_90 and newer, and needs a driver for CUDA 13";
  } else {
    hint = "nvidia-smi says what state the device is in";
  }
  throw Error(ErrorKind::environment, fmt::format("GPU: {}: {}", doing, cudaGetErrorString(status)), {},
              hint);
}

}  // namespace kda_check::cuda

#include "device.hpp"

#ifdef KDA_CHECK_CUDA
#include <cuda_runtime_api.h>
#endif

namespace kda_check::cuda {

#ifdef KDA_CHECK_CUDA

std::string device_text() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return std::string("no device: ") + cudaGetErrorString(status);
  if (count == 0) return "no device";
  cudaDeviceProp properties{};
  if (const cudaError_t failure = cudaGetDeviceProperties(&properties, 0); failure != cudaSuccess)
    return std::string("no device: ") + cudaGetErrorString(failure);
  return std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
         std::to_string(properties.minor);
}

#else

std::string device_text() { return "built without CUDA"; }

#endif

}  // namespace kda_check::cuda

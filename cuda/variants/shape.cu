// What shapes the kernels take on this device.
#include "cuda/device/device.hpp"
#include "cuda/variants/chunk/chunk.cuh"
#include "cuda/variants/gpu.hpp"
#include "cuda/variants/tensor_cores/chunk.cuh"

namespace kda_check::cuda {

namespace {

std::string lacks_shared_memory(const Shape& shape) {
  const std::size_t wanted = shape.is_fp64 ? chunk_shared_bytes<double>(static_cast<int>(shape.K))
                                           : chunk_shared_bytes<float>(static_cast<int>(shape.K));
  if (wanted <= shared_memory()) return {};
  return std::string(shape.is_fp64 ? "fp64" : "fp32") + " with K = " + std::to_string(shape.K) + " takes " +
         std::to_string(wanted / 1024) + " KB of shared memory, and this device has " +
         std::to_string(shared_memory() / 1024);
}

}  // namespace

std::string unsupported_shape(Kernel kernel, const Shape& shape) {
  const bool is_chunk = kernel == Kernel::chunk || kernel == Kernel::chunk_backward;
  if (std::string reason = unsupported_shape(shape); !reason.empty()) return reason;
  if (is_chunk && shape.rows != 16 && shape.rows != 32 && shape.rows != most_rows)
    return "gpu-chunk has chunks of 16, 32 and 64 rows";
  if (is_chunk && unavailable().empty()) return lacks_shared_memory(shape);
  return {};
}

std::string unsupported_on_tensor_cores(const Shape& shape) {
  if (shape.K > widest_tensor_core_key)
    return "on tensor cores gpu-chunk has K up to " + std::to_string(widest_tensor_core_key);
  if (shape.rows != image_rows)
    return "on tensor cores gpu-chunk has chunks of " + std::to_string(image_rows) + " rows";
  if (shape.HV > most_blocks || shape.tokens * shape.HV * (shape.V / 64 + 1) >= std::size_t{1} << 36)
    return "GPU variants have up to 65535 heads and 2^30 tokens";
  if (unavailable().empty() && (compute_capability() != 90 || !has_tensor_core_kernels()))
    return "on tensor cores gpu-chunk has the instructions and the bits of an sm_90";
  return {};
}

}  // namespace kda_check::cuda

// What shapes the kernels take on this device.
#include "cuda/device/device.hpp"
#include "cuda/variants/gpu.hpp"
#include "cuda/variants/tensor_cores/chunk.cuh"

namespace kda_check::cuda {

std::string unsupported_shape(Kernel kernel, const Shape& shape) {
  const bool is_chunk = kernel == Kernel::chunk || kernel == Kernel::chunk_backward;
  if (std::string reason = unsupported_shape(shape); !reason.empty()) return reason;
  if (is_chunk && shape.rows != 16 && shape.rows != 32 && shape.rows != 64)
    return "gpu-chunk has chunks of 16, 32 and 64 rows";
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

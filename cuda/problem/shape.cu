#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

std::string unsupported_shape(const Shape& shape) {
  if (shape.K > widest_key) return "GPU variants have K up to " + std::to_string(widest_key);
  if (shape.HV > most_blocks || shape.V / 64 + 8 > most_blocks || shape.tokens >= std::size_t{1} << 30)
    return "GPU variants have up to 65535 heads and 2^30 tokens";
  return {};
}

}  // namespace kda_check::cuda

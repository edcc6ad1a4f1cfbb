// The gradient oracle on the GPU behind plain data (kda/truth/gradient_oracle.hpp says what it is). The bits
// of the CPU's.
#pragma once

#include <array>

#include "cuda/problem/request.hpp"

namespace kda_check::cuda {

/// One gradient in host memory, indexed like its tensor; null: it is not wanted, or not kept.
struct GradientOutput {
  double *hi = nullptr, *lo = nullptr, *magnitude = nullptr, *chunk_magnitude = nullptr, *spread = nullptr;
};

struct GradientOracleRequest : ProblemInputs {
  std::array<GradientOutput, kda::gradient_count> gradients;  ///< by kda::Gradient; dq to dbeta are wanted
  bool in_fp64 = false;
  std::size_t chunk_size = 64;  ///< of the form that chunk_magnitude is for
  int threads = 1;              ///< of the host, for copies
};

/// Why the gradient oracle cannot run here for this shape; empty when it can.
std::string unsupported_gradient_oracle(const kda::Dimensions& dimensions);

/// Fills what is wanted, of the tokens of all sequences; others stay as they are. One run at a time: others
/// wait. Throws Error{environment} when the device fails or lacks memory.
void run_gradient_oracle(const GradientOracleRequest& request);

}  // namespace kda_check::cuda

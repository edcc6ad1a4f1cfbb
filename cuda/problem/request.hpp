// A problem behind plain data: tensors in host memory in, tensors in host memory out. Included without any
// CUDA header.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "cuda/device/host_tensor.hpp"
#include "kda/arithmetic/arithmetic.hpp"
#include "kda/terms/gradient.hpp"
#include "kda/terms/options.hpp"
#include "kda/terms/stage.hpp"

namespace kda_check::cuda {

enum class Kernel : unsigned char { recurrent, chunk, recurrent_backward, chunk_backward };

/// What a kernel's limits depend on. `tokens`: of all batch rows; `rows`: of a chunk.
struct Shape {
  bool is_fp64;
  std::size_t tokens, HV, K, V, rows;
};
/// Why no kernel can take this shape; empty when some can.
std::string unsupported_shape(const Shape& shape);
/// A problem (docs/file-format.md has the layouts).
struct ProblemInputs {
  kda::Dimensions dimensions;
  kda::Options options;
  double scale = 1;                      ///< that of the options, or what they leave to be chosen
  std::vector<kda::Sequence> sequences;  ///< in the order of the states
  Input q, k, v, g, beta, erase, write, A_log, dt_bias, initial_state;  ///< g and dt_bias for every channel
  Input output_gradient, state_gradient;                                ///< backwards: do and dht; none: zero
};

/// What to compute, and how. fp64 computes in fp64, all other dtypes in fp32.
struct Request : ProblemInputs {
  Output o, final_state;                              ///< forwards
  std::array<Output, kda::gradient_count> gradients;  ///< by kda::Gradient; none: it is not wanted

  bool is_fp64 = false, is_fused = true;
  kda::Exponential exponential = kda::Exponential::cuda;
  kda::CastPoints casts;
  kda::Arithmetic arithmetic;
  std::size_t chunk_size = 64;
  bool on_tensor_cores = false;  ///< chunk: the arithmetic of the preset h100-mma or h100-mma3

  /// chunk: where its stages go, by kda::Stage, in fp32 or fp64 as computed; states always [.., K, V].
  std::array<Output, kda::stage_count> stages;
};

}  // namespace kda_check::cuda

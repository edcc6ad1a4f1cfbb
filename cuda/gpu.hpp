// The GPU variants behind plain data: tensors in host memory in, tensors in host memory out. Included without
// any CUDA header; in builds without the toolkit the same functions exist and `unavailable` says so.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "kda/arithmetic.hpp"
#include "kda/gradient.hpp"
#include "kda/options.hpp"
#include "kda/stage.hpp"
#include "numeric/formats.hpp"

namespace kda_check::cuda {

/// Why no kernel can run here: "built without CUDA", "no device: <reason>"; empty when they can.
std::string unavailable();

/// "NVIDIA H100 80GB HBM3, sm_90", or what `unavailable` says.
std::string device_text();

/// The name of the device, "NVIDIA H100 80GB HBM3"; empty without one.
std::string device_name();

/// Begins what the first use of the device would wait for. Errors show at that use.
void make_ready();

enum class Kernel : unsigned char { recurrent, chunk, recurrent_backward, chunk_backward };

/// What a kernel's limits depend on. `tokens`: of all batch rows; `rows`: of a chunk.
struct Shape {
  bool is_fp64;
  std::size_t tokens, HV, K, V, rows;
};
/// Why a kernel cannot take this shape on this device; empty when it can.
std::string unsupported_shape(Kernel kernel, const Shape& shape);
/// ... of gpu-chunk on tensor cores.
std::string unsupported_on_tensor_cores(const Shape& shape);

/// A dense tensor in host memory; no data: there is none.
struct Input {
  numeric::DType dtype = numeric::DType::fp32;
  const void* data = nullptr;
  std::size_t elements = 0;
};
struct Output {
  numeric::DType dtype = numeric::DType::fp32;
  void* data = nullptr;
  std::size_t elements = 0;
};

/// A problem (docs/fixture-format.md has the layouts).
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
  kda::DecayForm decay = kda::DecayForm::anchor_pair;  ///< chunk: anchors of 16 rows
  kda::TailForm tail = kda::TailForm::suffix;
  std::size_t chunk_size = 64;
  bool on_tensor_cores = false;  ///< chunk: the arithmetic of the preset h100-mma, but for `decay`
  bool splits_operands = false;  ///< ... of h100-mma3

  /// chunk: where its stages go, by kda::Stage, in fp32 or fp64 as computed; states always [.., K, V].
  std::array<Output, kda::stage_count> stages;
};

/// Uploads, runs, downloads. Results are poisoned before the launch and memory is fenced with canaries;
/// inputs must come out as they went in. Throws Error{environment} when the device fails or lacks memory,
/// Error{internal} when a kernel wrote where it must not.
void run(Kernel kernel, const Request& request);

/// Seconds of each of `repeats` runs of the kernels alone, by the device's clock, after a warm-up. Inputs and
/// outputs rotate through up to 16 copies, as many as it takes to leave the cache behind; what gpu-chunk
/// keeps between its kernels stays where it is. Nothing is downloaded.
std::vector<double> time(Kernel kernel, const Request& request, int repeats);

/// Bytes per second, read plus written, of a copy within the device's memory.
double copy_bandwidth();

}  // namespace kda_check::cuda

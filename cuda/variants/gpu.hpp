// The GPU variants behind plain data: tensors in host memory in, tensors in host memory out. Included without
// any CUDA header; in builds without the toolkit the same functions exist and unavailable() says so.
#pragma once

#include <string>
#include <vector>

#include "cuda/variants/shards/segments.hpp"

namespace kda_check::cuda {

/// Why a kernel cannot take this shape on this device; empty when it can.
std::string unsupported_shape(Kernel kernel, const Shape& shape);
/// ... of gpu-chunk on tensor cores.
std::string unsupported_on_tensor_cores(const Shape& shape);

/// Uploads, runs, downloads. Results are poisoned before the launch and memory is fenced with canaries;
/// inputs must come out as they went in. Throws Error{environment} when the device fails or lacks memory,
/// Error{internal} when a kernel wrote where it must not.
void run(Kernel kernel, const Request& request);
/// Throws what the peers throw.
void run(Kernel kernel, const Request& request, const Segments& segments);

/// Seconds of each of `repeats` runs of the kernels alone, by the device's clock, after a warm-up. Inputs and
/// outputs rotate through up to 16 copies, as many as it takes to leave the cache behind; what gpu-chunk
/// keeps between its kernels stays where it is. Nothing is downloaded.
std::vector<double> time(Kernel kernel, const Request& request, int repeats);
std::vector<double> time(Kernel kernel, const Request& request, const Segments& segments, int repeats);

}  // namespace kda_check::cuda

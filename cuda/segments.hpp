// gpu-chunk in parts (docs/arithmetic.md, "segments"), on one device or on several that have a part each.
// Included without any CUDA header, as gpu.hpp.
#pragma once

#include <string>
#include <vector>

#include "gpu.hpp"

namespace kda_check {
class Peers;  // base/peers.hpp
}

namespace kda_check::cuda {

/// How the sequences of a request are cut.
struct Segments {
  /// By sequence, those of one behind each other; none: no sequence is cut.
  std::vector<kda::Sequence> parts;
  kda::SegmentMerge merge = kda::SegmentMerge::none;
  /// Forwards: this device has the tokens of part rank() of every sequence, and the parts of others are
  /// empty. Null: it has them all.
  Peers* peers = nullptr;
};

/// As run() and time() of gpu.hpp. Throws what the peers throw.
void run(Kernel kernel, const Request& request, const Segments& segments);
std::vector<double> time(Kernel kernel, const Request& request, const Segments& segments, int repeats);

/// Devices that the driver shows.
std::size_t device_count();
/// "NVIDIA H100 80GB HBM3, sm_90"
std::string device_text_of(int device);
/// What this thread uses from now on, a device like the first; unless it says so that is the first.
void use_device(int device);
/// Throws Error{environment} unless every device gets what the others hand out.
void check_exchange(Peers& peers);

}  // namespace kda_check::cuda

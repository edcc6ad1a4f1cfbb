// gpu-chunk in parts (docs/arithmetic.md, "segments"), on one device or on several that have a part each.
// Included without any CUDA header, as problem/request.hpp.
#pragma once

#include <vector>

#include "cuda/problem/request.hpp"

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

/// Throws Error{environment} unless every device gets what the others hand out.
void check_exchange(Peers& peers);

}  // namespace kda_check::cuda

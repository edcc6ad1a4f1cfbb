// gpu-chunk in parts (docs/arithmetic.md, "segments"): all of them on one device, or each on its own.
#pragma once

#include <vector>

#include "cuda/variants/shards/segments.hpp"
#include "kda/shards/shared_devices.hpp"

namespace kda_check::kda {

/// All parts on one device.
cuda::Segments segments_on_device(const Problem& problem, const RunOptions& options);

/// The part of every sequence that one of several devices has, as a problem of its own with all states; where
/// it has none, with a token that nobody asks for.
class DeviceShare {
 public:
  DeviceShare(const Problem& whole, const RunOptions& options, Peers& peers);

  const Problem& problem() const { return problem_; }
  const cuda::Segments& segments() const { return segments_; }
  /// Of one head.
  std::size_t tokens() const;
  /// Into the answer to the whole: its tokens, and the final states of sequences whose last part it has.
  void store(const Answer& own, Answer& whole) const;

 private:
  std::vector<Sequence> pieces_;  ///< of the whole, by sequence
  std::vector<bool> has_last_;
  std::size_t tokens_of_whole_;  ///< of a batch row
  Problem problem_;
  cuda::Segments segments_;
};

/// Calls body(share, rank) on a thread for each device, which it uses; counts what that costs.
void on_devices(PeerGroup& devices, const Problem& problem, const RunOptions& options,
                const std::function<void(const DeviceShare& share, std::size_t rank)>& body);

}  // namespace kda_check::kda

// Devices that share the runs of gpu-chunk: who they are, and what each did.
#pragma once

#include <vector>

#include "base/peers.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::kda {

/// What a device did, and what it took.
struct DeviceCost {
  std::size_t tokens = 0;  ///< of one head
  double seconds = 0;      ///< in all its runs, copies and waiting included
  double exchanging = 0;   ///< in exchanges, waiting for others included
  double megabytes = 0;    ///< handed to others
};

/// From now on forward runs of gpu-chunk with segments=tree:P are shared, P being their number. Set once,
/// before the first run; checks that they reach each other. Throws Error{environment} where they do not, or
/// differ.
void share_devices(PeerGroup* devices);
/// Those that a run is shared among; null: it is not. Runs that tell stages are not.
PeerGroup* devices_of(const RunOptions& options);
/// Of each device, in the order of ranks.
std::vector<DeviceCost> device_costs();

}  // namespace kda_check::kda

// Devices of a host that compute one problem together, a thread of this process for each. Who carries the
// bytes between them is behind this (nccl/devices.hpp).
#pragma once

#include <cstddef>
#include <functional>

namespace kda_check {

/// The others, as one of these threads sees them. All functions throw Error{environment} when another one
/// failed or cannot be reached.
class Peers {
 public:
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  virtual std::size_t rank() const = 0;
  virtual std::size_t count() const = 0;
  /// Waits for all; the least of what they say.
  virtual std::size_t least(std::size_t own) = 0;
  /// `blocks`: in memory of the device, count() blocks of `bytes` bytes, of which number rank() is there; the
  /// others are there when it returns. Goes through the default stream. `is_done`: whether that has done all
  /// it was given.
  virtual void gather_all(void* blocks, std::size_t bytes, const std::function<bool()>& is_done) = 0;
};

class PeerGroup {
 public:
  PeerGroup() = default;
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;
  virtual ~PeerGroup() = default;

  virtual std::size_t count() const = 0;
  /// The number of a rank's device among those the driver shows.
  virtual int device(std::size_t rank) const = 0;
  /// work(peers) on a thread for each; one run at a time. Throws what the first that failed threw, with its
  /// rank, when all have ended.
  virtual void run(const std::function<void(Peers&)>& work) = 0;
};

}  // namespace kda_check

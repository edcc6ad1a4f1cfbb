// GPUs of this host as ranks, a thread of this process for each; NCCL carries the bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/peers.hpp"

namespace kda_check::nccl {

/// Seconds that are waited for what should take none. Then the process ends with a line and the exit code of
/// ErrorKind::environment: nothing ends a call that does not return.
struct Patience {
  double start = 120;    ///< for the devices to find each other
  double exchange = 60;  ///< for an exchange, once all of them are there
};

/// An exchange that fails ends the process as well: the others wait in it for what never comes.
class Devices : public PeerGroup {
 public:
  /// Rank r has devices[r]. Throws Error{environment} where there is no NCCL, or it cannot.
  explicit Devices(std::vector<int> devices, const Patience& patience = {});
  ~Devices() override;

  std::size_t count() const override;
  int device(std::size_t rank) const override;
  void run(const std::function<void(Peers&)>& work) override;

  /// "NCCL 2.28.9 (libnccl.so.2)"
  std::string library() const;

 private:
  class Member;
  struct State;

  void watch() const;

  const std::shared_ptr<State> state_;  ///< of a thread that may outlive this, too
};

/// Which devices are ranks: of `visible` all, or as KDA_CHECK_NCCL_DEVICES says, "0,1" or, where what carries
/// the bytes allows it, "0,0". Throws Error{usage} for other words.
std::vector<int> devices_named(std::size_t visible);

}  // namespace kda_check::nccl

// --segments nccl: the GPUs of this host share forward runs of gpu-chunk.
#pragma once

#include <string>

#include "cli/command.hpp"
#include "nccl/devices.hpp"
#include "plan/request.hpp"

namespace kda_check::cli {

/// From here on, as long as it lives.
class SharedDevices {
 public:
  /// Throws Error{environment} without a GPU, without NCCL, or where they do not reach each other.
  SharedDevices();
  SharedDevices(const SharedDevices&) = delete;
  SharedDevices& operator=(const SharedDevices&) = delete;
  ~SharedDevices();

  /// Adds the word that says how sequences are cut.
  void add_to(plan::Request& request) const;
  /// A line for each device, and one for NCCL.
  void say_costs() const;

 private:
  nccl::Devices devices_;
};

/// Throws Error{usage} where the request has what a run that is shared cannot have, or nothing to share.
void check_shared(const plan::Request& request, SharedBy whose);

}  // namespace kda_check::cli

// Inputs that stay on a device from run to run, because somebody says that they do not change.
#pragma once

#include <vector>

#include "cuda/device/host_tensor.hpp"

namespace kda_check::cuda {

/// While one lives these inputs stay on a device to which they went up, and do not go up again. Their
/// elements must stay what and where they are. Where the device has no memory left, those that nobody uses
/// are freed.
class KeptInputs {
 public:
  explicit KeptInputs(std::vector<Input> inputs);
  KeptInputs(const KeptInputs&) = delete;
  KeptInputs& operator=(const KeptInputs&) = delete;
  ~KeptInputs();

 private:
  std::vector<Input> inputs_;
};

}  // namespace kda_check::cuda

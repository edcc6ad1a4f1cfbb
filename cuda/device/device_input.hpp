// An input in the memory of the device: there already (kept_inputs.hpp), or brought there.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/device/host_tensor.hpp"
#include "cuda/device/memory.hpp"

namespace kda_check::cuda {

/// The elements of an input.
struct DeviceInput {
  DeviceMemory memory;
  std::uint64_t hash;  ///< as they went up
};

/// There must be data. What goes up does so behind all that the default stream does.
std::shared_ptr<const DeviceInput> on_device(const char* name, const Input& input);
/// The same, but null where it would have to go up.
std::shared_ptr<const DeviceInput> already_on_device(const Input& input);

/// A copy that nobody else has.
std::shared_ptr<const DeviceInput> own_on_device(const char* name, const Input& input);

// Of those that stay on this device, but that nobody uses.

std::size_t bytes_of_unused_inputs();
void free_unused_inputs();

}  // namespace kda_check::cuda

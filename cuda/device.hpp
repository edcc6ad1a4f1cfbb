// What the kernels have to know about the device.
#pragma once

#include <cstddef>

namespace kda_check::cuda {

/// Bytes of shared memory that a block may ask for: 227 KB on an H100, 163 KB on an A100, 99 KB on some.
std::size_t shared_memory();

/// The number of the device that this thread is at.
int this_device();

/// 90 of an sm_90.
int compute_capability();

}  // namespace kda_check::cuda

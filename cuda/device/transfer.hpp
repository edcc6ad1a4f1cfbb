// Large copies between the device and memory of the host that it cannot reach by itself: through memory that
// it can, by several threads. A single one is several times slower than the bus, most of all where it is the
// first to touch what it fills.
#pragma once

#include <cstddef>

namespace kda_check::cuda {

/// Below, the runtime's own copies do as well.
inline constexpr std::size_t large_copy = std::size_t{8} << 20;

/// Behind all that the default stream does; done when they return. From any thread: others wait.
void copy_to_device(void* to, const void* from, std::size_t bytes);
void copy_to_host(void* to, const void* from, std::size_t bytes);

}  // namespace kda_check::cuda

// A number for the contents of device memory, to tell whether they changed.
#pragma once

#include <cstddef>

namespace kda_check::cuda {

/// Adds to *sum (in device memory) a function of all bytes and their places. `bytes` is aligned to 4.
void add_hash(const void* bytes, std::size_t count, unsigned long long* sum);

}  // namespace kda_check::cuda

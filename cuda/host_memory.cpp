#include "host_memory.hpp"

#include <cuda_runtime_api.h>

#include "check.hpp"

namespace kda_check::cuda {

PinnedMemory::~PinnedMemory() {
  if (memory_ != nullptr) cudaFreeHost(memory_);  // at the end of the process the runtime may be gone
}

void PinnedMemory::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  if (memory_ != nullptr) check(cudaFreeHost(memory_), "freeing memory of the host");
  memory_ = nullptr, bytes_ = 0;
  check(cudaHostAlloc(&memory_, bytes, cudaHostAllocDefault), "allocating memory of the host");
  bytes_ = bytes;
}

}  // namespace kda_check::cuda

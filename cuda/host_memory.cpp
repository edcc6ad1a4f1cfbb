#include "host_memory.hpp"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdlib>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "check.hpp"

namespace kda_check::cuda {

namespace {

constexpr std::size_t page = 4096, large_page = std::size_t{2} << 20;

/// In large pages, where the system has them, which several threads fill: the runtime's own allocation, a page
/// and a thread, takes five times as long.
void* filled_memory(std::size_t bytes) {
  void* const memory = std::aligned_alloc(large_page, bytes);
  if (memory == nullptr)
    throw Error(ErrorKind::environment, "no memory for copies to and from a GPU", {},
                "a smaller shape, or a machine with more memory");
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  parallel_for(bytes / large_page, available_threads(), [&](std::size_t i, int) {
    for (std::size_t at = i * large_page; at < (i + 1) * large_page; at += page)
      static_cast<volatile char*>(memory)[at] = 0;
  });
  return memory;
}

}  // namespace

PinnedMemory::~PinnedMemory() { release(); }

void PinnedMemory::release() {
  if (memory_ == nullptr) return;
  cudaHostUnregister(memory_);  // at the end of the process the runtime may be gone
  std::free(memory_);
  memory_ = nullptr, bytes_ = 0;
}

void PinnedMemory::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  release();
  const std::size_t whole = (bytes + large_page - 1) / large_page * large_page;
  memory_ = filled_memory(whole);
  if (const cudaError_t status = cudaHostRegister(memory_, whole, cudaHostRegisterDefault);
      status != cudaSuccess) {
    std::free(memory_);
    memory_ = nullptr;
    check(status, "allocating memory of the host");
  }
  bytes_ = whole;
}

}  // namespace kda_check::cuda

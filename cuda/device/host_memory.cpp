#include "cuda/device/host_memory.hpp"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "base/memory.hpp"
#include "base/threads/parallel.hpp"
#include "cuda/device/check.hpp"

namespace kda_check::cuda {

namespace {

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + large_page_bytes - 1) / large_page_bytes * large_page_bytes;
}

}  // namespace

void PinnedMemory::Unmap::operator()(void* begin) const { ::munmap(begin, bytes); }

PinnedMemory::~PinnedMemory() { release(); }

void PinnedMemory::release() {
  // At the end of the process the runtime may be gone.
  if (mapped_ != nullptr)
    cudaHostUnregister(memory_);
  else if (memory_ != nullptr)
    cudaFreeHost(memory_);
  mapped_.reset();
  memory_ = nullptr, bytes_ = 0;
}

void PinnedMemory::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  release();
  const std::size_t whole = rounded_up(bytes);
  if (void* const memory = registered(whole); memory != nullptr)
    memory_ = memory;
  else
    check(cudaHostAlloc(&memory_, whole, cudaHostAllocDefault), "allocating memory of the host");
  bytes_ = whole;
}

/// In large pages, where the system has them, which several threads fill: the runtime's own allocation, a
/// page and a thread, takes five times as long. Null where that cannot be had. A child does not get it: it
/// would have this process write to pages that the device does not read.
void* PinnedMemory::registered(std::size_t bytes) {
  const std::size_t with_margin = bytes + large_page_bytes;
  void* const begin = ::mmap(nullptr, with_margin, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  std::unique_ptr<void, Unmap> mapped(begin, Unmap(with_margin));
  auto* const memory = reinterpret_cast<char*>(rounded_up(reinterpret_cast<std::uintptr_t>(begin)));
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  ::madvise(memory, bytes, MADV_DONTFORK);
  touch_pages(memory, bytes, available_threads());
  if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess) {
    cudaGetLastError();  // or the next launch reports a failure that was dealt with
    return nullptr;
  }
  mapped_ = std::move(mapped);
  return memory;
}

}  // namespace kda_check::cuda

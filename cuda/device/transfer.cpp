#include "cuda/device/transfer.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "base/threads/parallel.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/host_memory.hpp"
#include "cuda/device/stream.hpp"

namespace kda_check::cuda {

namespace {

constexpr std::size_t slots = 2, piece = std::size_t{16} << 20, share = std::size_t{1} << 20;
constexpr int threads = 6;

/// One slot is filled or emptied while the other is on its way.
class Transfer {
 public:
  void to_device(char* to, const char* from, std::size_t bytes) {
    begin();
    over_pieces(bytes, [&](std::size_t slot, std::size_t at, std::size_t count) {
      moved_[slot].wait();
      copy(slots_[slot].as<char>(), from + at, count);
      move(slot, to + at, slots_[slot].as<char>(), count, cudaMemcpyHostToDevice);
    });
    check(cudaStreamSynchronize(stream_.get()), "uploading a tensor");
  }
  void to_host(char* to, const char* from, std::size_t bytes) {
    begin();
    std::size_t begun = 0;
    over_pieces(bytes, [&](std::size_t, std::size_t at, std::size_t count) {
      for (; begun < std::min(bytes, at + slots * piece); begun += piece) {
        const std::size_t next = begun / piece % slots;
        move(next, slots_[next].as<char>(), from + begun, std::min(piece, bytes - begun),
             cudaMemcpyDeviceToHost);
      }
      const std::size_t slot = at / piece % slots;
      moved_[slot].wait();
      copy(to + at, slots_[slot].as<char>(), count);
    });
  }

 private:
  void begin() {
    for (PinnedMemory& memory : slots_) memory.reserve(piece);
    check(cudaStreamSynchronize(nullptr), "waiting for the GPU");  // for kernels of that stream
  }
  template <class Body>
  static void over_pieces(std::size_t bytes, const Body& body) {
    for (std::size_t at = 0; at < bytes; at += piece)
      body(at / piece % slots, at, std::min(piece, bytes - at));
  }
  static void copy(char* to, const char* from, std::size_t bytes) {
    parallel_for((bytes + share - 1) / share, threads, [&](std::size_t item, int) {
      std::memcpy(to + item * share, from + item * share, std::min(share, bytes - item * share));
    });
  }
  void move(std::size_t slot, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    check(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()), "copying a tensor");
    moved_[slot].set(stream_);
  }

  std::array<PinnedMemory, slots> slots_;
  std::array<Mark, slots> moved_;
  Stream stream_;
};

/// That of a device: a stream is of one.
struct OfDevice {
  std::mutex in_use;
  Transfer transfer;
};
OfDevice& of_device() {
  static std::mutex making;
  static auto& made = *new std::map<int, std::unique_ptr<OfDevice>>;  // at the end the runtime may be gone
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  const std::lock_guard lock(making);
  std::unique_ptr<OfDevice>& known = made[device];
  if (!known) known = std::make_unique<OfDevice>();
  return *known;
}

/// Kept from copy to copy: to ask for its memory takes longer than many of them.
template <class Body>
void with_transfer(const Body& body) {
  OfDevice& own = of_device();
  const std::lock_guard lock(own.in_use);
  body(own.transfer);
}

}  // namespace

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  with_transfer([&](Transfer& transfer) {
    transfer.to_device(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  });
}

void copy_to_host(void* to, const void* from, std::size_t bytes) {
  with_transfer([&](Transfer& transfer) {
    transfer.to_host(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  });
}

}  // namespace kda_check::cuda

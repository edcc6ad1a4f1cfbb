// Rows of host memory on their way to the device, through memory that it copies by itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/threads/parallel.hpp"
#include "cuda/device/host_memory.hpp"
#include "cuda/device/stream.hpp"

namespace kda_check::cuda {

class GradientUpload {
 public:
  /// `bytes` of each of `rows`, which lie `stride` apart, side by side to `to`. Returns before they are
  /// there.
  void rows(const char* from, std::size_t stride, std::size_t bytes, const std::vector<std::size_t>& rows,
            int threads, void* to, const Stream& stream) {
    const std::size_t at_once = std::max<std::size_t>(1, piece_bytes / bytes);
    for (std::size_t first = 0; first < rows.size(); first += at_once) {
      const std::size_t count = std::min(at_once, rows.size() - first);
      Slot& slot = slots_[next_++ % slots_.size()];
      if (slot.is_used) slot.copied.wait();
      slot.memory.reserve(count * bytes);
      constexpr std::size_t most = 64;
      const std::size_t blocks = (count + most - 1) / most;
      parallel_for(blocks, count * bytes < 1 << 20 ? 1 : threads, [&](std::size_t block, int) {
        for (std::size_t i = block * most; i < std::min(block * most + most, count); ++i)
          std::memcpy(slot.memory.as<char>(i * bytes), from + rows[first + i] * stride, bytes);
      });
      check(cudaMemcpyAsync(static_cast<char*>(to) + first * bytes, slot.memory.as<char>(), count * bytes,
                            cudaMemcpyHostToDevice, stream.get()),
            "uploading tokens");
      slot.copied.set(stream);
      slot.is_used = true;
    }
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{1} << 24;
  struct Slot {
    PinnedMemory memory;
    Mark copied;
    bool is_used = false;
  };
  std::array<Slot, 3> slots_;
  std::size_t next_ = 0;
};

}  // namespace kda_check::cuda

// One run at a time on a GPU: two would share its memory.
#pragma once

#include <mutex>

namespace kda_check::engine {

/// Waits for whoever runs there. Not for a thread that holds one.
[[nodiscard]] inline std::unique_lock<std::mutex> alone_on_gpu() {
  static std::mutex gpu;
  return std::unique_lock(gpu);
}

}  // namespace kda_check::engine

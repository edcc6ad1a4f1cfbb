// Launching a kernel.
#pragma once

#include <mutex>

#include "cuda/device/check.hpp"

namespace kda_check::cuda {

/// Held from asking for shared memory to the launch that needs it.
inline std::mutex launching;

/// While one is there, this thread launches nothing, but what it would launch is loaded. A kernel that takes
/// more memory of threads than those before it is loaded when all that run have ended, and until then nothing
/// is launched or copied by others either.
class LoadingOnly {
 public:
  LoadingOnly() { is_on() = true; }
  LoadingOnly(const LoadingOnly&) = delete;
  LoadingOnly& operator=(const LoadingOnly&) = delete;
  ~LoadingOnly() { is_on() = false; }
  static bool& is_on() {
    thread_local bool on = false;
    return on;
  }
};

/// Checks the launch; what the kernel does shows at the next synchronisation. From any thread. Shared memory
/// beyond 48 KB has to be asked for, and what was asked for last holds for the whole process: another thread
/// may launch the same kernel with less.
template <class... Parameters, class... Arguments>
void launch_on(cudaStream_t stream, const char* name, void (*kernel)(Parameters...), dim3 grid, int threads,
               std::size_t shared_bytes, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const std::lock_guard lock(launching);
  if (LoadingOnly::is_on()) {
    cudaFuncAttributes loaded;
    return check(cudaFuncGetAttributes(&loaded, kernel), name);
  }
  if (shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          name);
  kernel<<<grid, threads, shared_bytes, stream>>>(arguments...);
  check(cudaGetLastError(), name);
}
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t shared_bytes,
            const Arguments&... arguments) {
  launch_on(nullptr, name, kernel, grid, threads, shared_bytes, arguments...);
}

}  // namespace kda_check::cuda

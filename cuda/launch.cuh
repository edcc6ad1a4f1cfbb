// Launching a kernel; those of gpu-chunk are listed in chunk.cuh.
#pragma once

#include "check.hpp"
#include "problem.cuh"

namespace kda_check::cuda {

/// Checks the launch; what the kernel does shows at the next synchronisation. Shared memory beyond 48 KB has
/// to be asked for.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t shared_bytes,
            const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          name);
  kernel<<<grid, threads, shared_bytes>>>(arguments...);
  check(cudaGetLastError(), name);
}

/// `sequences`: in device memory, `count` of them; state n belongs to sequence n. T: what is computed in.
template <class T>
void launch_recurrent(bool is_fused, const DeviceProblem& p, const TokenRange* sequences,
                      int count);  // recurrent.cuh

}  // namespace kda_check::cuda

// What the warps of the oracle's recurrence hand to each other, and how they wait: barriers in shared memory
// that one side arrives at and the other waits for, and copies from memory that nobody waits for until they
// are needed.
#pragma once

#include <cstdint>

namespace kda_check::cuda {

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Some warps arrive for each phase; phases are numbered from 0. Every lane arrives: that of one would do,
/// but compute-sanitizer would not know of the others.
struct ChainBarrier {
  std::uint64_t word;

  __device__ void begin(int warps) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&word)), "r"(32 * warps)
                 : "memory");
  }
  /// What this warp wrote before is seen by who waited. Called by all lanes.
  __device__ void arrive() {
    asm volatile(
        "{\n"
        ".reg .b64 state;\n"
        "mbarrier.arrive.shared.b64 state, [%0];\n"
        "}" ::"r"(shared_address(&word))
        : "memory");
  }
  /// Until phase `phase` is over; the next one may not be.
  __device__ void wait(int phase) {
    const unsigned address = shared_address(&word), parity = static_cast<unsigned>(phase) & 1u;
    unsigned done = 0;
    while (done == 0)
      asm volatile(
          "{\n"
          ".reg .pred there;\n"
#if __CUDA_ARCH__ >= 900
          "mbarrier.try_wait.parity.shared.b64 there, [%1], %2;\n"
#else
          "mbarrier.test_wait.parity.shared.b64 there, [%1], %2;\n"
#endif
          "selp.u32 %0, 1, 0, there;\n"
          "}"
          : "=r"(done)
          : "r"(address), "r"(parity)
          : "memory");
  }
};

/// `bytes` 8 or 16, aligned to that.
template <int bytes>
__device__ void copy_to_shared(void* target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(target)), "l"(source),
               "n"(bytes)
               : "memory");
}
/// All copies of this thread are there.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace kda_check::cuda

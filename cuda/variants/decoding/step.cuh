// A token for each of many sequences, whose states are in slots of a pool and stay there.
#pragma once

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

/// gpu-recurrent in fp32 and with fused multiply-adds, the pool being initial_state and final_state of the
/// problem. `sequences` and `slots`, of their states: in device memory, `count` of them.
void launch_decoding(cudaStream_t stream, const DeviceProblem& p, const TokenRange* sequences,
                     const std::uint32_t* slots, int count);

}  // namespace kda_check::cuda

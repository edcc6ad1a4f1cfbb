// gpu-recurrent, for who launches it.
#pragma once

#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

/// `sequences`: in device memory, `count` of them; state n belongs to sequence n. T: what is computed in.
template <class T>
void launch_recurrent(bool is_fused, const DeviceProblem& p, const TokenRange* sequences,
                      int count);  // recurrent.cuh

}  // namespace kda_check::cuda

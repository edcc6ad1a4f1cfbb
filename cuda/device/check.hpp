// The calls of the CUDA runtime whose failure matters go through here.
#pragma once

#include <cuda_runtime_api.h>

namespace kda_check::cuda {

/// Throws Error naming what was being done: Error{internal} for what only a wrong kernel can cause, else
/// Error{environment}. After an illegal access or a lost device every later call fails too.
void check(cudaError_t status, const char* doing);

}  // namespace kda_check::cuda

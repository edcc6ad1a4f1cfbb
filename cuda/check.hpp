// Every call of the CUDA runtime goes through here.
#pragma once

#include <cuda_runtime_api.h>

namespace kda_check::cuda {

/// Throws Error{environment} naming what was being done; after a failure that poisons the process (an illegal
/// access, a lost device) every later call fails too.
void check(cudaError_t status, const char* doing);

}  // namespace kda_check::cuda

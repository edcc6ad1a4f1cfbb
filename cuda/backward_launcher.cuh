// gpu-recurrent backwards, ready to be launched on a problem (launcher.cuh).
#pragma once

#include "launcher.cuh"

namespace kda_check::cuda {

std::unique_ptr<Launcher> backward_launcher_for(const Request& request);

}  // namespace kda_check::cuda

// The GPU of this machine, as far as the program can see it. Included without any CUDA header.
#pragma once

#include <string>

namespace kda_check::cuda {

/// "NVIDIA H100 80GB HBM3, sm_90", "no device: <reason>" or "built without CUDA".
std::string device_text();

}  // namespace kda_check::cuda

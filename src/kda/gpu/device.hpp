// The GPU of this machine.
#pragma once

#include <cstddef>
#include <string>

namespace kda_check::kda {

/// Why nothing can run there: "built without CUDA", "no device: <reason>"; empty when it can.
std::string gpu_unavailable();
std::string gpu_device_name();  ///< empty without one
/// "NVIDIA H100 80GB HBM3, sm_90", or what gpu_unavailable() says.
std::string gpu_text();
std::size_t gpu_count();  ///< those that the driver shows
void make_gpu_ready();    ///< takes what its first user would wait for, 0.2 s
/// Whether what was done there left it so that more can be done; true where nothing was.
bool gpu_is_well();
void give_back_gpu_memory();  ///< what nobody uses, and was kept for the next who asks
/// Bytes per second, read plus written, of a copy within the device's memory, measured now.
double gpu_copy_bandwidth();

}  // namespace kda_check::kda

#include "kda/gpu/device.hpp"

#include "cuda/device/device.hpp"

namespace kda_check::kda {

std::string gpu_unavailable() { return cuda::unavailable(); }
std::string gpu_device_name() { return cuda::device_name(); }
std::string gpu_text() { return cuda::device_text(); }
std::size_t gpu_count() { return cuda::device_count(); }
void make_gpu_ready() { cuda::make_ready(); }
bool gpu_is_well() { return cuda::is_well(); }
void give_back_gpu_memory() { cuda::give_back_memory(); }
double gpu_copy_bandwidth() { return cuda::copy_bandwidth(); }

}  // namespace kda_check::kda

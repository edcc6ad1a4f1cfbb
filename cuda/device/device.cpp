// The device this process uses, the first one the driver shows (CUDA_VISIBLE_DEVICES chooses), and those
// beside it.
#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include "cuda/device/check.hpp"
#include "cuda/device/device.hpp"

namespace kda_check::cuda {

namespace {

/// The oldest architecture there is machine code for (CMakeLists.txt); newer ones compile the PTX.
constexpr int oldest_major = 8;

struct Device {
  std::string name, reason;  ///< reason: why it cannot be used
  int major = 0, minor = 0;
  std::size_t shared_bytes = 0;
};

Device look(int number) {
  Device device;
  int count = 0;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) status = cudaGetDeviceProperties(&properties, number);
  if (status != cudaSuccess) {
    device.reason = fmt::format("no device: {}", cudaGetErrorString(status));
    return device;
  }
  if (count == 0) {
    device.reason = "no device";
    return device;
  }
  device.name = properties.name;
  device.major = properties.major;
  device.minor = properties.minor;
  device.shared_bytes = properties.sharedMemPerBlockOptin;
  if (device.major < oldest_major)
    device.reason = fmt::format("no device: {} is sm_{}{}, and the kernels need sm_{}0 or newer", device.name,
                                device.major, device.minor, oldest_major);
  return device;
}

const Device& device() {
  static const Device found = look(0);
  return found;
}

std::string text_of(const Device& device) {
  if (!device.reason.empty()) return device.reason;
  return fmt::format("{}, sm_{}{}", device.name, device.major, device.minor);
}

}  // namespace

std::string unavailable() { return device().reason; }
std::size_t shared_memory() { return device().shared_bytes; }
int compute_capability() { return 10 * device().major + device().minor; }
void make_ready() {
  if (!device().reason.empty()) return;
  static const cudaError_t begun = [] {
    // What kernels take of memory for threads stays: to give it back and to take it again all that run must
    // end.
    cudaSetDeviceFlags(cudaDeviceLmemResizeToMax);
    return cudaFree(nullptr);
  }();
  static_cast<void>(begun);
}
std::string device_name() { return device().reason.empty() ? device().name : std::string(); }
std::string device_text() { return text_of(device()); }

std::size_t device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  return static_cast<std::size_t>(count);
}
std::string device_text_of(int number) { return text_of(look(number)); }
int this_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  return device;
}
void use_device(int number) { check(cudaSetDevice(number), "choosing a device"); }

}  // namespace kda_check::cuda

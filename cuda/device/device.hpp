// The devices: whether there is one, which, and what the kernels have to know about it. Included without any
// CUDA header; in builds without the toolkit unavailable() says so.
#pragma once

#include <cstddef>
#include <string>

namespace kda_check::cuda {

/// Why no kernel can run here: "built without CUDA", "no device: <reason>"; empty when they can.
std::string unavailable();

/// "NVIDIA H100 80GB HBM3, sm_90", or what `unavailable` says.
std::string device_text();

/// The name of the device, "NVIDIA H100 80GB HBM3"; empty without one.
std::string device_name();

/// Begins what the first use of the device would wait for. Errors show at that use.
void make_ready();

/// Whether all devices that this process has memory of still work: a kernel that failed, or a reset, takes
/// what is there with it.
bool is_well();
/// To the driver, on all of them: memory that is kept for whoever asks next.
void give_back_memory();

/// Devices that the driver shows.
std::size_t device_count();
/// "NVIDIA H100 80GB HBM3, sm_90"
std::string device_text_of(int device);
/// What this thread uses from now on, a device like the first; unless it says so that is the first.
void use_device(int device);
/// Bytes per second, read plus written, of a copy within the device's memory, measured now.
double copy_bandwidth();

// What the kernels ask.

/// Bytes of shared memory that a block may ask for: 227 KB on an H100, 163 KB on an A100, 99 KB on some.
std::size_t shared_memory();

/// The number of the device that this thread is at.
int this_device();

/// 90 of an sm_90.
int compute_capability();

}  // namespace kda_check::cuda

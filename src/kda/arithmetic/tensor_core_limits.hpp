// What gpu-chunk can run on tensor cores, beside the limits of a device.
#pragma once

#include <string>

#include "kda/arithmetic/arithmetic.hpp"
#include "kda/terms/options.hpp"

namespace kda_check::kda {

/// The widest K: forwards with 16-bit operands, where one image of a chunk fits into shared memory; and with
/// gradients or split operands.
inline constexpr int widest_tensor_core_key = 256, narrow_tensor_core_key = 128;

/// Why gpu-chunk and gpu-recurrent have no backward pass where they have a forward one; empty where they
/// have.
std::string gpu_lacks_gradients(const Arithmetic& arithmetic, const Dimensions& dimensions);

}  // namespace kda_check::kda

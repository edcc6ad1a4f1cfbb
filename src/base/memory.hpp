#pragma once

namespace kda_check {

/// Tensors come and go; without this the C library keeps their memory after the first few.
void return_large_blocks_to_the_system();

}  // namespace kda_check

// Where a process runs out of memory, stack or descriptors: no file is to blame for that.
#pragma once

#include <cstddef>

#include "base/error.hpp"

namespace kda_check {

/// Of a call about an input that failed: `reason` is its errno.
ErrorKind kind_of_failed_input(int reason);

/// Throws Error{environment} where the stack may not grow as far as this program needs it.
void require_stack();

/// Throws Error{environment} where this process cannot have so many bytes more, or not one more descriptor:
/// for what would crash then, or call it something else.
void require_room(std::size_t bytes);

}  // namespace kda_check

#pragma once

#include <functional>

#include "plan/words.hpp"

namespace kda_check::cli {

/// The program without its exceptions: returns the exit code of the command, throws Error.
int called_with(const plan::Words& words);

/// The one place where exceptions end: they become a line on standard error and an exit code, and one that a
/// signal asked for the end of the process.
int guarded(const std::function<int()>& work);

}  // namespace kda_check::cli

// From the words on the command line to targets.
#pragma once

#include <string>
#include <vector>

namespace kda_check::session {

/// Files stay as they are, existing or not, and so do regimes; a directory stands for the .h5 files in it, in
/// order of name. Throws Error{usage} when there is nothing at all.
std::vector<std::string> expanded_targets(const std::vector<std::string>& targets);

}  // namespace kda_check::session

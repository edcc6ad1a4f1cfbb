// Scripts that complete the words of kda-check in a shell, and the manual page, from the option tree.
#pragma once

#include <string>
#include <vector>

#include "cli/option_tree.hpp"

namespace kda_check::cli {

/// To be sourced, or put where the shell looks for completions. They hold the names that exist when they are
/// written: nothing of kda-check runs while one types.
std::string bash_completions(const std::vector<CommandDescription>& tree);
std::string zsh_completions(const std::vector<CommandDescription>& tree);
std::string fish_completions(const std::vector<CommandDescription>& tree);

/// kda-check.1, in the macros of man(7).
std::string manual_page(const std::vector<CommandDescription>& tree);

/// The first sentence or so of an option's help, on one line.
std::string one_line(const std::string& text);

}  // namespace kda_check::cli

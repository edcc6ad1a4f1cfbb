// What can be typed: every command with its options and the words they take, for completions and the man
// page.
#pragma once

#include <string>
#include <vector>

#include "cli/parser.hpp"

namespace kda_check::cli {

struct CommandDescription {
  std::string name, summary;
  std::string text;    ///< the first line of its help
  std::string footer;  ///< what its help ends with: details, examples, exit codes
  std::vector<OptionDescription> options;
  bool is_hidden = false;
};

/// In the order of help. Nothing is run.
std::vector<CommandDescription> option_tree();

}  // namespace kda_check::cli

// What can be typed: every command with its options and the words they take, for completions and the man
// page.
#pragma once

#include <string>
#include <vector>

namespace kda_check::cli {

struct OptionDescription {
  std::vector<std::string> flags;  ///< "-q", "--quiet"; empty: a positional
  std::string value;               ///< what help calls its value, "NAME,..."; empty: it takes none
  std::string text;                ///< lines of help
  std::vector<std::string> words;  ///< the words it takes; empty: anything. After '=' and ':' a value goes on
  bool optional_value = false;     ///< "--json" alone is allowed
  bool is_list = false;            ///< words between commas
  bool is_path = false;            ///< names of files too
};

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

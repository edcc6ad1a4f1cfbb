// Suites: text files whose lines are the words one would type after `kda-check run`.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "session/selftest.hpp"

namespace kda_check::cli {

struct SuiteLine {
  std::size_t number;  ///< in the file, from 1
  Words words;
};

struct Suite {
  std::string path;
  std::string directory;         ///< what relative paths in its lines start from
  std::vector<SuiteLine> lines;  ///< empty lines and # comments dropped

  /// "path:7", for errors.
  std::string place(const SuiteLine& line) const;
  /// A path in one of its lines, seen from where the user is; empty stays empty.
  std::string path_of(const std::string& in_line) const;
};

/// "@smoke" is suites/smoke.txt of the cases that came with the program, "@some/file.txt" is that file.
/// Throws Error{usage} for an unknown name, Error{input} for a folder or a file that cannot be read.
Suite load_suite(const std::string& target);

/// What `run TARGET` would run, line by line. Throws what load_suite and the command line of a line throw.
std::vector<session::SuiteLine> suite_requests(const std::string& target);

/// Names of the suites that came with the program.
std::vector<std::string> suite_names();

}  // namespace kda_check::cli

// Suites: text files whose lines are the words one would type after `kda-check run` (docs/ci.md).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/words.hpp"

namespace kda_check::plan {

struct Suite {
  struct Line {
    std::size_t number;  ///< in the file, from 1
    Words words;
  };
  std::string name;    ///< as typed: "@ci", "@path/to/mine.txt"
  std::string path;    ///< of the file
  std::string folder;  ///< what relative paths in its lines start from
  std::string called;  ///< what that folder is called in names: the same wherever the program is installed
  std::vector<Line> lines;  ///< empty ones and comments dropped

  /// "@ci:24"
  std::string place(const Line& line) const;
  /// A path in one of its lines, seen from where the user is; empty stays empty.
  std::string path_of(const std::string& in_line) const;
};

/// "@smoke" is suites/smoke.txt of the cases that came with the program, "@some/file.txt" is that file.
/// Throws Error{usage} for an unknown name, Error{input} for a folder, a file that cannot be read or a line
/// that cannot be cut into words.
Suite load_suite(const std::string& name);

/// The lines of a suite's text. Throws Error{input} with the place of the line.
std::vector<Suite::Line> suite_lines(std::string_view text, const std::string& name);

/// Names of the suites that came with the program.
std::vector<std::string> suite_names();

}  // namespace kda_check::plan

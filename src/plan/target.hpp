// From the words on the command line to targets: files, or regimes that are built here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kda_check::plan {

struct Target {
  std::string name;  ///< who it is in reports and baselines: as typed, wherever the program runs
  std::string path;  ///< where it is from here; of a regime the same
  bool is_regime = false;
};

/// True for a text that names a regime and no file.
bool is_regime(const std::string& text);
/// "@smoke": a suite, and no file of that name.
bool is_suite(const std::string& text);
/// Anything a command would take for a target: a regime, a suite, a fixture's name, a folder.
bool looks_like_a_target(const std::string& text);

/// A folder stands for the fixtures below it (.h5, .hdf5), in order of name; a file or a regime for itself,
/// existing or not. `folder` and `called`: what the text is relative to, for a line of a suite, and what that
/// place is called in names; empty: the current folder. Throws Error{usage} for an empty word, one that is
/// neither a file nor a regime nor looks like a path, or a folder without fixtures; Error{input} for a folder
/// that cannot be read.
std::vector<Target> expanded(const std::string& text, const std::string& folder = {},
                             const std::string& called = {});

}  // namespace kda_check::plan

// --shard I/N: one of N parts of what a command line would run, for N machines to share it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "cli/commands.hpp"

namespace kda_check::cli {

/// A target is in the part that a hash of its text and of the options of its line names: the same on every
/// machine and wherever the cases are installed, and whatever other targets there are. Every target is in
/// exactly one of the parts; a part may be empty.
struct Shard {
  std::size_t index = 1;  ///< from 1
  std::size_t count = 1;

  bool is_whole() const { return count == 1; }
  /// `target`: as written. `line`: the options of the line of a suite; empty for targets of the command line.
  bool holds(const std::string& target, const Words& line) const;
  std::string text() const;
};

/// "2/4". Throws CLI::ValidationError for anything else than two numbers with 1 <= I <= N.
Shard parse_shard(const std::string& text);

void add_shard(CLI::App& app, Shard& shard);

/// The targets of one line that are in the shard. The .h5 files of a folder are targets of their own,
/// "folder/file.h5". `directory`: what the folders of the line are relative to. `total` is raised by all
/// targets of the line. Throws what expanded_targets throws.
std::vector<std::string> targets_in(const Shard& shard, const std::vector<std::string>& targets,
                                    const Words& line, const std::string& directory, std::size_t& total);

}  // namespace kda_check::cli

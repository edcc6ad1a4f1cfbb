// --shard: one of several parts of what a command line would run, for as many machines or processes to share
// it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kda_check::plan {

struct Shard {
  std::size_t index = 1;  ///< from 1
  std::size_t count = 1;
  std::string source;  ///< of --shard auto: "OMPI_COMM_WORLD_RANK"; else empty

  bool is_whole() const { return count == 1; }
  std::string text() const;  ///< "2/4"
};

/// "2/4"; "auto": what the scheduler says in the environment. Throws Error{usage} for anything else than two
/// numbers with 1 <= I <= N, and where no scheduler says anything.
Shard shard_named(const std::string& text);

/// What Slurm arrays and tasks, MPI ranks, GitLab and GitHub say: an array of jobs of several ranks each
/// counts all of them. `variable` looks a name up, as getenv does.
std::optional<Shard> shard_from(const std::function<const char*(const char*)>& variable);

/// Which part each item is in, from 0: the costliest first to the part that has least yet, so that parts cost
/// about the same. The same on every machine.
std::vector<std::size_t> balanced(const std::vector<double>& costs, std::size_t parts);

}  // namespace kda_check::plan

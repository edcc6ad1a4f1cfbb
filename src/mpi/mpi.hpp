// The processes that mpirun, or srun, started together with this one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/ranks.hpp"

namespace kda_check::mpi {

/// Joins them; called once. One that is silent for `limit` ends the run: `say` gets the line, on another
/// thread, and the process ends with the code of ErrorKind::environment. Throws Error{environment} where this
/// build has no MPI.
std::unique_ptr<Ranks> join(std::chrono::seconds limit, std::function<void(const std::string&)> say);

/// Whether all ranks are alike in these texts. On rank 0 throws Error{environment} naming the first that is
/// not, and in which; elsewhere false. Called by all. A rank with a `problem` of its own says that instead.
struct Identity {
  std::string program;  ///< version and build
  std::string work;     ///< what is planned
  std::string problem;  ///< why it cannot go on; mostly empty
};
bool agree(Ranks& ranks, const Identity& own);

/// Version, and a hash of the file that runs.
std::string program_identity();

/// Runs `work` in a child process and returns its exit code, or that of ErrorKind::environment with a line
/// that says how it ended: nothing in a process can tell of its own killing.
int guarded(const std::function<int()>& work);

}  // namespace kda_check::mpi

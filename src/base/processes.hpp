// Child processes: how they begin, and that none outlives this one.
#pragma once

#include <signal.h>
#include <sys/types.h>

namespace kda_check {

/// Those that ask for the end (interruption.hpp).
inline constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

/// fork(), with what a child of ours begins with: a process group of its own, so that the keyboard reaches
/// this process alone; the default action of every signal, except that SIGINT, SIGTERM and SIGHUP stay
/// ignored where they were when the program began; nothing blocked. Of the files that are open nothing is
/// closed.
pid_t fork_child();

/// In a child: it is killed when the thread that forked it ends. `parent`: getpid() before the fork.
void end_with_parent(pid_t parent);

/// The same by way of vfork, then execve: no page of this process is copied or held, and no lock of another
/// thread is met on the way (posix_spawn could not bind it to its parent). Standard input is /dev/null,
/// `output` takes standard output and standard error. The program is killed when the calling thread ends. -1
/// where there can be no process; a program that cannot be run ends with status 127.
pid_t start_program(const char* path, const char* const* words, int output);

/// Whether a child has ended; it is still to be waited for. Throws Error{environment} where that cannot be
/// known, because somebody else waited for it.
bool has_ended(pid_t child);

/// Kills a child, if it still lives, and waits for it. Its status as waitpid has it; 0 where that cannot be
/// known.
int end_child(pid_t child);

/// A process group that must not outlive this process: killed by a signal that ends it.
class RunningProcesses {
 public:
  explicit RunningProcesses(pid_t group);
  RunningProcesses(RunningProcesses&&) = delete;
  RunningProcesses& operator=(RunningProcesses&&) = delete;
  ~RunningProcesses();

 private:
  void* entry_;
};

/// Kills them all. For handlers of signals.
void end_running_processes();

}  // namespace kda_check

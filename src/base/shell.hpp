// A command of the user, run through /bin/sh and watched.
#pragma once

#include <string>

namespace kda_check {

struct ShellResult {
  int status = 0;          ///< exit status, where it ended by itself
  int signal = 0;          ///< the signal that ended the shell, or its last command (status 128 + n); 0: none
  bool timed_out = false;  ///< it was ended, with everything it had started in its process group
  std::string tail;        ///< the last lines of its standard output and standard error
};

/// Runs `command` with an empty standard input; what it prints is kept for messages, nothing reaches our own
/// streams. Its process group ends with it, with the time limit, with a signal that asks for the end
/// (Interrupted is thrown) and with this process. From any thread. Throws Error{environment} when no process
/// can be started.
ShellResult run_shell(const std::string& command, int seconds);

}  // namespace kda_check

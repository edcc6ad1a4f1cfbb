#include "base/shell.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/descriptors.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/processes.hpp"

namespace kda_check {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr std::size_t longest_tail = 2000;

[[noreturn]] void cannot_start(const char* what) {
  throw Error(ErrorKind::environment,
              std::string("cannot start a program: ") + what + ": " + std::strerror(errno));
}

/// The shell and whatever it leaves running in its group, killed at the end of scope.
class Shell {
 public:
  Shell(const std::string& command, int output) : child_(started(command, output)), group_(child_) {}
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;
  ~Shell() { end(); }

  bool has_ended() const { return kda_check::has_ended(child_); }
  /// Returns its status. The group goes first: nobody else has its number before the shell was waited for.
  int end() {
    if (status_) return *status_;
    ::kill(-child_, SIGKILL);
    return status_.emplace(end_child(child_));
  }

 private:
  static pid_t started(const std::string& command, int output) {
    const char* const words[] = {"sh", "-c", command.c_str(), nullptr};
    const pid_t child = start_program("/bin/sh", words, output);
    if (child < 0) cannot_start("vfork");
    return child;
  }
  pid_t child_;
  RunningProcesses group_;
  std::optional<int> status_;
};

/// False at the end of the pipe, and when there is nothing to read now.
bool read_some(int pipe, std::string& tail) {
  char buffer[4096];
  const ssize_t count = ::read(pipe, buffer, sizeof buffer);
  if (count <= 0) return count < 0 && errno == EINTR;
  tail.append(buffer, static_cast<std::size_t>(count));
  if (tail.size() > 2 * longest_tail) tail.erase(0, tail.size() - longest_tail);
  return true;
}

/// Reads until the shell has ended or the time is up; false: it was.
bool watch(Shell& shell, int pipe, Clock::time_point deadline, std::string& tail) {
  bool open = true;
  while (!shell.has_ended()) {
    if (Clock::now() >= deadline) return false;
    if (!open) {
      sleep_for(milliseconds(10));
    } else if (wait_until_ready(pipe, POLLIN, milliseconds(20))) {
      open = read_some(pipe, tail);
    }
  }
  return true;
}

}  // namespace

ShellResult run_shell(const std::string& command, int seconds) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) cannot_start("pipe");
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  ::fcntl(reading.number(), F_SETFL, O_NONBLOCK);  // ours; the program writes to a pipe like any other
  Shell shell(command, writing.number());
  writing.reset();
  ShellResult result;
  result.timed_out =
      !watch(shell, reading.number(), Clock::now() + std::chrono::seconds(seconds), result.tail);
  const int status = shell.end();
  constexpr int reads_of_a_full_pipe = 16;  // one that left the group could go on writing
  for (int i = 0; i < reads_of_a_full_pipe && read_some(reading.number(), result.tail);) ++i;
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (WIFEXITED(status)) {
    result.status = WEXITSTATUS(status);
    if (result.status > 128 && result.status < 128 + 65) result.signal = result.status - 128;
  }
  if (result.tail.size() > longest_tail) result.tail.erase(0, result.tail.size() - longest_tail);
  while (!result.tail.empty() && result.tail.back() == '\n') result.tail.pop_back();
  return result;
}

}  // namespace kda_check

#include "base/shell.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.hpp"
#include "base/temporary_files.hpp"

namespace kda_check {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t longest_tail = 2000;

[[noreturn]] void cannot_start(const char* what) {
  throw Error(ErrorKind::environment,
              std::string("cannot start a program: ") + what + ": " + std::strerror(errno));
}

/// In the child: only what may be called between fork and exec.
[[noreturn]] void become_shell(const char* command, int output, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // should this process be killed without a chance to end its children
  if (::getppid() != parent) ::_exit(127);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execl("/bin/sh", "sh", "-c", command, static_cast<char*>(nullptr));
  ::_exit(127);
}

/// False at the end of the pipe.
bool read_some(int pipe, std::string& tail) {
  char buffer[4096];
  const ssize_t count = ::read(pipe, buffer, sizeof buffer);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  tail.append(buffer, static_cast<std::size_t>(count));
  if (tail.size() > 2 * longest_tail) tail.erase(0, tail.size() - longest_tail);
  return count > 0;
}

/// Reads until the child has ended or the time is up; returns true with its status when it has ended.
bool watch(pid_t child, int pipe, Clock::time_point deadline, int& status, std::string& tail) {
  bool open = true;
  for (;;) {
    if (open) {
      pollfd ready{pipe, POLLIN, 0};
      if (::poll(&ready, 1, 20) > 0) open = read_some(pipe, tail);
    } else {
      ::usleep(10000);
    }
    if (::waitpid(child, &status, WNOHANG) == child) return true;
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace

ShellResult run_shell(const std::string& command, int seconds) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) cannot_start("pipe");
  ::fcntl(ends[1], F_SETFL, 0);  // the program writes to a pipe like any other
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) become_shell(command.c_str(), ends[1], parent);
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    cannot_start("fork");
  }
  ::setpgid(child, child);  // here as well: whoever comes first
  ShellResult result;
  int status = 0;
  {
    const TemporaryProcesses group(child);
    if (!watch(child, ends[0], Clock::now() + std::chrono::seconds(seconds), status, result.tail)) {
      result.timed_out = true;
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
    }
    ::kill(-child, SIGKILL);  // what it left running in the background
  }
  for (std::size_t before = 0; before != result.tail.size();) {
    before = result.tail.size();
    if (!read_some(ends[0], result.tail)) break;
  }
  ::close(ends[0]);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (WIFEXITED(status)) {
    result.status = WEXITSTATUS(status);
    if (result.status > 128 && result.status < 128 + 65) result.signal = result.status - 128;
  }
  if (result.tail.size() > longest_tail) result.tail.erase(0, result.tail.size() - longest_tail);
  while (!result.tail.empty() && result.tail.back() == '\n') result.tail.pop_back();
  return result;
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  }
  return quoted + "'";
}

}  // namespace kda_check

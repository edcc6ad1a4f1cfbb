#include "base/processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/signal_safe_list.hpp"

namespace kda_check {

namespace {

using Groups = SignalSafeList<pid_t>;
Groups running;

/// Nothing arrives on this thread while one lives: a handler of ours must not run in a child.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// What fork_child() promises. Only what may be called in the child of a vfork.
void begin_as_child() {
  ::setpgid(0, 0);
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_DFL) continue;
    const bool asks =
        std::find(std::begin(ending_signals), std::end(ending_signals), signal) != std::end(ending_signals);
    if (asks && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
  }
}

void let_signals_through() {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void become(const char* path, const char* const* words, int output, pid_t parent) {
  end_with_parent(parent);
  begin_as_child();
  let_signals_through();
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  if (nothing > STDERR_FILENO) ::close(nothing);
  ::execve(path, const_cast<char* const*>(words), environ);
  ::_exit(127);
}

}  // namespace

pid_t fork_child() {
  pid_t child = -1;
  {
    const SignalsBlocked blocked;
    child = ::fork();
    if (child == 0) begin_as_child();
  }
  if (child == 0) {
    forget_interruption();
    let_signals_through();
  }
  return child;
}

void end_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
}

// The child runs in the memory of this process until it executes the program: on the stack below this call,
// while this thread waits.
pid_t start_program(const char* path, const char* const* words, int output) {
  const SignalsBlocked blocked;
  const pid_t parent = ::getpid();
  const pid_t child = ::vfork();
  if (child == 0) become(path, words, output, parent);
  return child;
}

bool has_ended(pid_t child) {
  siginfo_t what{};
  int found = -1;
  do found = ::waitid(P_PID, static_cast<id_t>(child), &what, WEXITED | WNOHANG | WNOWAIT);
  while (found != 0 && errno == EINTR);
  if (found != 0)
    throw Error(ErrorKind::environment,
                fmt::format("cannot learn how a process ended: {}", std::strerror(errno)), {},
                "is SIGCHLD ignored?");
  return what.si_pid == child;
}

int end_child(pid_t child) {
  ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return 0;
  return status;
}

RunningProcesses::RunningProcesses(pid_t group) : entry_(running.add(group)) {}

RunningProcesses::~RunningProcesses() { Groups::remove(static_cast<Groups::Node*>(entry_)); }

void end_running_processes() {
  running.for_each([](pid_t group) { ::kill(-group, SIGKILL); });
}

}  // namespace kda_check

#include "base/interruption.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "base/descriptors.hpp"
#include "base/processes.hpp"
#include "base/temporary_files.hpp"

namespace kda_check {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Signals that come closer together than this are one request.
constexpr std::int64_t one_request_ns = 250'000'000;

// A handler may interrupt anything, on any thread: lock-free atomics only.
std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_moment{0};
std::atomic<int> event{-1};  ///< readable from the first signal on, for all who poll
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Leaves nothing behind; the signal strikes on return from its handler.
extern "C" void end_at_once(int signal) {
  end_running_processes();
  remove_temporary_files();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

extern "C" void ask_for_the_end(int signal) {
  const int reason = errno;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    first_moment.store(now_ns());
    const std::uint64_t one = 1;
    if (::write(event.load(), &one, sizeof one) < 0) errno = reason;
  } else if (const std::int64_t first = first_moment.load();
             first != 0 && now_ns() - first >= one_request_ns) {
    end_at_once(signal);
  }
  errno = reason;
}

/// Unless it was ignored at the start.
void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // who waits, polls
  ::sigaction(signal, &action, nullptr);
}

milliseconds left(Clock::time_point deadline) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

/// `time` < 0: no limit. A negative descriptor is ready never.
bool poll_once(int descriptor, short events, milliseconds time) {
  pollfd both[] = {{descriptor, events, 0}, {event.load(), POLLIN, 0}};
  const int ready = ::poll(both, 2, static_cast<int>(std::min(time, milliseconds(1'000'000)).count()));
  check_interruption();
  return ready > 0 && both[0].revents != 0;
}

}  // namespace

void prepare_signals() {
  const Descriptor made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // Not the number of a standard stream that happens to be closed.
  event.store(::fcntl(made.number(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  for (const int signal : ending_signals) handle(signal, ask_for_the_end);
  for (const int signal : {SIGQUIT, SIGXCPU}) handle(signal, end_at_once);
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
}

void interrupt(int signal) { ask_for_the_end(signal); }

int interruption() { return first_signal.load(std::memory_order_relaxed); }

void check_interruption() {
  if (const int signal = interruption(); signal != 0) throw Interrupted{signal};
}

bool wait_until_ready(int descriptor, short events, milliseconds time) {
  const Clock::time_point deadline = Clock::now() + time;
  for (;;) {
    const milliseconds rest = left(deadline);
    if (poll_once(descriptor, events, rest)) return true;
    if (rest == milliseconds(0)) return false;
  }
}

void wait_until_ready(int descriptor, short events) {
  while (!poll_once(descriptor, events, milliseconds(-1))) {
  }
}

void sleep_for(milliseconds time) { wait_until_ready(-1, 0, time); }

void forget_interruption() {
  first_signal.store(0);
  event.store(-1);
}

void end_by_signal(int signal) {
  std::fflush(nullptr);
  // Nothing is unwound from here on.
  end_running_processes();
  remove_temporary_files();
  ::signal(signal, SIG_DFL);
  sigset_t alone;
  sigemptyset(&alone);
  sigaddset(&alone, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &alone, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);
}

}  // namespace kda_check

#include "mpi/heartbeat.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace kda_check::mpi {

namespace {

using Clock = std::chrono::steady_clock;

/// Signals are for the threads that look for them (base/interruption.hpp).
std::thread started_without_signals(const std::function<void()>& work) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(work);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

Heartbeat::Heartbeat(const Functions& functions, int rank, int count, std::chrono::seconds limit,
                     std::function<void(const std::string&)> lost)
    : functions_(functions),
      before_((rank + count - 1) % count),
      behind_((rank + 1) % count),
      limit_(limit),
      lost_(std::move(lost)) {
  if (count > 1) thread_ = started_without_signals([this] { beat(); });
}

Heartbeat::~Heartbeat() {
  stops_ = true;
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::finish() {
  ends_ = true;
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::beat() {
  const std::chrono::milliseconds limit = limit_;
  const auto pause = std::clamp(limit / 20, std::chrono::milliseconds(50), std::chrono::milliseconds(500));
  Clock::time_point heard = Clock::now(), last = heard;
  while (!stops_) {
    int news = 0;  // none where MPI cannot reach a rank: whoever has ended says so itself
    functions_.beat(before_, behind_, ends_ ? 1 : 0, &news);
    const Clock::time_point now = Clock::now();
    // Where this process itself was stopped, nobody else is to blame.
    if ((news & heard_one) != 0 || now - last > limit / 2) heard = now;
    last = now;
    if ((news & heard_last) != 0 && (news & sent_last) != 0) return;
    if ((news & heard_last) == 0 && now - heard > limit)
      return lost_(
          fmt::format("--segments mpi: rank {} has not been heard of for {} s", behind_, limit_.count()));
    std::this_thread::sleep_for(ends_ ? std::chrono::milliseconds(2) : pause);
  }
}

}  // namespace kda_check::mpi

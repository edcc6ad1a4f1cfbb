// Waiting that is over within microseconds, as a rule: to sleep and to be woken takes longer.
#pragma once

#include <chrono>
#include <mutex>

namespace kda_check {

/// Until `is_over()`, or as long as it takes to wake a thread. True: it was over.
template <class Condition>
bool spin_until(const Condition& is_over) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds most{60};
  constexpr int looks_at_once = 32;
  const Clock::time_point end = Clock::now() + most;
  do {
    for (int look = 0; look < looks_at_once; ++look) {
      if (is_over()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (Clock::now() < end);
  return is_over();
}

/// For what is held for a microsecond, as a rule.
inline std::unique_lock<std::mutex> locked(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::defer_lock);
  spin_until([&] { return lock.try_lock(); });
  if (!lock.owns_lock()) lock.lock();
  return lock;
}

}  // namespace kda_check

#include "base/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "base/interruption.hpp"

namespace kda_check {

int available_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

// Threads are started for each call and end with it: that costs some 20 us, and no thread ever spins, which
// on a busy machine costs a time slice.
void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t, int)>& body) {
  const int used =
      static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(std::max(1, threads)), count));
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr first_failure;
  const auto work = [&](int worker) {
    for (std::size_t item = next++; item < count && !failed; item = next++) {
      try {
        check_interruption();
        body(item, worker);
      } catch (...) {
        if (!failed.exchange(true)) first_failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int worker = 1; worker < used; ++worker) others.emplace_back(work, worker);
    } catch (const std::system_error&) {
      // No more threads to be had: those there are do the work.
    }
    work(0);
  }
  if (first_failure) std::rethrow_exception(first_failure);
}

}  // namespace kda_check

#include "base/parallel.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace kda_check {

int available_threads() { return std::max(1, omp_get_num_procs()); }

void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t, int)>& body) {
  const int used = static_cast<int>(std::min<std::size_t>(std::max(1, threads), count));
  if (used <= 1) {
    for (std::size_t item = 0; item < count; ++item) body(item, 0);
    return;
  }
  std::exception_ptr first_failure;
  std::atomic<bool> failed{false};
#pragma omp parallel for schedule(dynamic, 1) num_threads(used)
  for (std::size_t item = 0; item < count; ++item) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      body(item, omp_get_thread_num());
    } catch (...) {
      if (!failed.exchange(true)) first_failure = std::current_exception();
    }
  }
  if (first_failure) std::rethrow_exception(first_failure);
}

}  // namespace kda_check

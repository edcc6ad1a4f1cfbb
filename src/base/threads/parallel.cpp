#include "base/threads/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/interruption.hpp"
#include "base/threads/spinning.hpp"
#include "base/threads/work.hpp"

namespace kda_check {

namespace {

/// One call of parallel_for.
struct Call {
  const std::size_t count;
  const std::function<void(std::size_t, int)>& body;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr first_failure = {};
  // Of the pool, under its lock; who called is no helper.
  int helpers_wanted = 0, helpers = 0;
  std::atomic<int> at_work{0};
  std::condition_variable all_left = {};
  Work* const at_hand = Work::at_hand();

  void work(int worker) {
    const Work::Here here(at_hand);
    for (std::size_t item = next++; item < count && !failed; item = next++) {
      try {
        check_interruption();
        body(item, worker);
      } catch (...) {
        if (!failed.exchange(true)) first_failure = std::current_exception();
      }
    }
  }
};

/// Threads that wait for calls. To start one costs some 20 us, and they start one after the other: too long
/// for the last of sixteen. To wake as many takes 60 us and more: calls follow each other, so they spin for
/// about as long before they sleep, and no longer, which on a busy machine costs a time slice. They wait
/// until the process ends; a child that was forked has none, and who calls there does all the work.
class Pool {
 public:
  /// Until all items are done; calls may be nested.
  void run(Call& call, int helpers_wanted) {
    std::unique_lock lock = locked(mutex_);
    grow(promised_ + helpers_wanted);
    call.helpers_wanted = std::min(helpers_wanted, threads_ - promised_);
    promised_ += call.helpers_wanted;
    const auto open = open_.insert(open_.end(), &call);
    places_ += call.helpers_wanted;
    lock.unlock();
    wake_two();
    call.work(0);
    lock = locked(mutex_);
    open_.erase(open);
    places_ -= call.helpers_wanted - call.helpers;
    promised_ -= call.helpers_wanted;
    lock.unlock();
    spin_until([&] { return call.at_work == 0; });
    lock = locked(mutex_);  // who left last may still be here
    call.all_left.wait(lock, [&] { return call.at_work == 0; });
  }

 private:
  void grow(int threads) {
    try {
      for (; threads_ < threads; ++threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: those there are do the work.
    }
  }

  /// Each that wakes wakes two more: the last of sixteen is the fifth in its line.
  void wake_two() {
    begun_.notify_one();
    begun_.notify_one();
  }

  [[noreturn]] void serve() {
    for (;;) {
      spin_until([&] { return places_ > 0; });
      std::unique_lock lock = locked(mutex_);
      begun_.wait(lock, [&] { return places_ > 0; });
      Call& call =
          **std::ranges::find_if(open_, [](const Call* one) { return one->helpers < one->helpers_wanted; });
      const int worker = ++call.helpers;
      --places_;
      ++call.at_work;
      lock.unlock();
      wake_two();
      call.work(worker);
      lock = locked(mutex_);
      if (--call.at_work == 0) call.all_left.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable begun_;
  std::list<Call*> open_;
  std::atomic<int> places_{0};  ///< for helpers, in open calls
  int threads_ = 0, promised_ = 0;
};

}  // namespace

int available_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t, int)>& body) {
  static Pool& pool = *new Pool;  // its threads use it until the process ends
  const int used =
      static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(std::max(1, threads)), count));
  Call call{count, body};
  if (used > 1) {
    pool.run(call, used - 1);
  } else {
    call.work(0);
  }
  if (call.first_failure) std::rethrow_exception(call.first_failure);
}

}  // namespace kda_check

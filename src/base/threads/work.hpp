// How much of a long piece of work is done: loops count their steps, and whoever waits looks.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace kda_check {

/// A piece of work at hand: until its end that of this thread and of the threads of parallel_for that work
/// for it. Where nobody wants to know there is no whole, and nothing is counted for parts of it.
class Work {
 public:
  /// The whole, of so many seconds.
  explicit Work(double seconds);
  /// A part of what is at hand. `steps`: as many as are counted for it, beside its own parts.
  Work(double seconds, double steps);
  /// Then all of it is done, however much was counted.
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Of its seconds. From any thread.
  double done() const;

  /// Of what is at hand. Cheap.
  static void count(std::size_t steps) {
    if (at_hand_ != nullptr) at_hand_->counted_.fetch_add(steps, std::memory_order_relaxed);
  }
  static Work* at_hand() { return at_hand_; }
  /// Has `work` at hand on this thread, for its time.
  class Here {
   public:
    explicit Here(Work* work) : before_(at_hand_) { at_hand_ = work; }
    ~Here() { at_hand_ = before_; }
    Here(const Here&) = delete;
    Here& operator=(const Here&) = delete;

   private:
    Work* const before_;
  };

 private:
  inline static thread_local Work* at_hand_ = nullptr;

  Work* const whole_ = nullptr;  ///< that it is a part of
  const double seconds_, steps_;
  std::atomic<std::size_t> counted_{0};
  mutable std::mutex mutex_;
  std::vector<const Work*> parts_ = {};  ///< at work
  double of_parts_ = 0;                  ///< that came to their end
  const Here here_;
};

}  // namespace kda_check

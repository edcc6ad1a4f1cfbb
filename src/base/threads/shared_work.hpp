// Work in few and long pieces, which are cut while they are done: who has nothing left to do is handed a part
// of what another has. Processors are not equally fast at any time, and pieces of the same size do not end
// together.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/interruption.hpp"
#include "base/threads/parallel.hpp"
#include "base/threads/spinning.hpp"

namespace kda_check {

template <class Piece>
class SharedWork {
 public:
  /// Pieces are begun in this order.
  explicit SharedWork(std::vector<Piece> pieces)
      : pieces_(std::make_move_iterator(pieces.begin()), std::make_move_iterator(pieces.end())) {}

  /// Calls body(piece) for every piece, those that are handed on too, on at most `threads` threads. Throws as
  /// parallel_for does.
  template <class Body>
  void run(int threads, const Body& body) {
    const int used = std::max(1, threads);
    parallel_for(static_cast<std::size_t>(used), used, [&](std::size_t, int) {
      try {
        for (std::optional<Piece> piece = first(); piece; piece = next()) body(std::move(*piece));
      } catch (...) {
        give_up();
        throw;
      }
    });
  }

  /// Somebody waits: a body that can should hand on a part of its piece. Cheap.
  bool is_wanted() const { return wanted_.load(std::memory_order_relaxed) > 0; }
  /// From within a body.
  void hand_on(Piece piece) {
    {
      const std::unique_lock lock = locked(mutex_);
      pieces_.push_back(std::move(piece));
      tell();
    }
    told_.notify_one();
  }

 private:
  std::optional<Piece> first() {
    std::unique_lock lock = locked(mutex_);
    return taken(lock);
  }
  std::optional<Piece> next() {
    std::unique_lock lock = locked(mutex_);
    if (--at_work_ == 0 && pieces_.empty()) {
      tell();
      told_.notify_all();
    }
    return taken(lock);
  }
  void give_up() {
    const std::unique_lock lock = locked(mutex_);
    is_given_up_ = true;
    tell();
    told_.notify_all();
  }

  /// Nothing when nobody will hand on anything any more.
  std::optional<Piece> taken(std::unique_lock<std::mutex>& lock) {
    ++waiting_;
    while (!is_over() && !interrupted()) wait(lock);
    --waiting_;
    check_interruption();
    std::optional<Piece> piece;
    if (!pieces_.empty() && !is_given_up_) {
      piece.emplace(std::move(pieces_.front()));
      pieces_.pop_front();
      ++at_work_;
    }
    count();
    return piece;
  }
  bool is_over() const { return !pieces_.empty() || at_work_ == 0 || is_given_up_; }
  /// For news; not for ever: a signal brings none.
  void wait(std::unique_lock<std::mutex>& lock) {
    constexpr std::chrono::milliseconds most{10};
    count();
    const unsigned known = news_;
    lock.unlock();
    const bool is_told = spin_until([&] { return news_ != known; });
    lock = locked(mutex_);
    if (!is_told && news_ == known) told_.wait_for(lock, most);
  }
  void tell() {
    ++news_;
    count();
  }
  void count() { wanted_ = waiting_ - static_cast<int>(pieces_.size()); }

  std::mutex mutex_;
  std::condition_variable told_;
  std::deque<Piece> pieces_;
  int at_work_ = 0, waiting_ = 0;
  bool is_given_up_ = false;
  std::atomic<unsigned> news_{0};
  std::atomic<int> wanted_{0};  ///< pieces, by those who wait
};

}  // namespace kda_check

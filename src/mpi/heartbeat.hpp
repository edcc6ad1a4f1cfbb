// Whether the other ranks are still there. A rank that computes says nothing for hours, so a thread of its
// own speaks for it: every rank tells the one before it that it lives, and listens to the one behind it. A
// ring, so that every rank is listened to by one other, and one line is written about it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "mpi/functions.hpp"

namespace kda_check::mpi {

/// Beats from its construction on.
class Heartbeat {
 public:
  /// `lost` is called, on a thread of its own, with what is to be said when nothing was heard for `limit`
  /// from the rank behind; it does not return.
  Heartbeat(const Functions& functions, int rank, int count, std::chrono::seconds limit,
            std::function<void(const std::string&)> lost);
  /// Stops without a word.
  ~Heartbeat();
  /// Says goodbye, and waits until the rank behind has: nothing is on its way any more.
  void finish();

 private:
  void beat();

  const Functions& functions_;
  const int before_, behind_;
  const std::chrono::seconds limit_;
  const std::function<void(const std::string&)> lost_;
  std::atomic<bool> ends_ = false, stops_ = false;
  std::thread thread_;
};

}  // namespace kda_check::mpi

#include "base/threads/work.hpp"

#include <algorithm>

namespace kda_check {

Work::Work(double seconds) : seconds_(seconds), steps_(0), here_(this) {}

Work::Work(double seconds, double steps)
    : whole_(at_hand_), seconds_(seconds), steps_(steps), here_(whole_ == nullptr ? nullptr : this) {
  if (whole_ == nullptr) return;
  const std::lock_guard lock(whole_->mutex_);
  whole_->parts_.push_back(this);
}

Work::~Work() {
  if (whole_ == nullptr) return;
  const std::lock_guard lock(whole_->mutex_);
  std::erase(whole_->parts_, this);
  whole_->of_parts_ += seconds_;
}

double Work::done() const {
  const std::lock_guard lock(mutex_);
  double done = of_parts_;
  for (const Work* const part : parts_) done += part->done();
  if (const auto counted = static_cast<double>(counted_); counted > 0) done += seconds_ * counted / steps_;
  return std::min(done, seconds_);
}

}  // namespace kda_check

// Of a long enumeration a part: another one each time, so that many runs see all of it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <random>
#include <string>

namespace kda_check::test {

/// Every `step`-th item from `first` on. Without the variable `first` is drawn anew; KDA_CHECK_SAMPLE=3
/// begins at the fourth, KDA_CHECK_SAMPLE=all takes every item (docs/developing.md).
struct Sampled {
  explicit Sampled(std::size_t one_in = 64) : first(std::random_device()() % one_in), step(one_in) {
    const char* const wanted = std::getenv("KDA_CHECK_SAMPLE");
    if (wanted == nullptr) return;
    if (std::string(wanted) == "all")
      first = 0, step = 1;
    else
      first = std::stoul(wanted) % one_in;
  }
  bool has(std::size_t item) const { return item % step == first; }
  /// Whether it has the next item.
  bool next() { return has(item_++); }
  /// For INFO.
  std::string text() const { return "KDA_CHECK_SAMPLE=" + std::to_string(first); }

  std::size_t first, step;

 private:
  std::size_t item_ = 0;
};

}  // namespace kda_check::test

#include "engine/twins_ahead.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

namespace kda_check::engine {

namespace {

/// What there is room for: one is measured, beside the first, while the other comes. Later two are.
constexpr std::size_t at_once = 3;

bool are_same(const Emulations& some, const Emulations& others) {
  return std::ranges::equal(some, others, [](const kda::Emulated& a, const kda::Emulated& b) {
    return a.options == b.options && a.scaled == b.scaled;
  });
}

}  // namespace

TwinsAhead::TwinsAhead(const kda::Problem& problem, std::vector<Emulations> wanted)
    : problem_(problem), wanted_(std::move(wanted)), coming_(wanted_.size()) {
  begin(at_once);
}

void TwinsAhead::begin(std::size_t end) {
  const std::size_t first = begun_;
  end = std::min(end, wanted_.size());
  if (first >= end) return;
  const auto work = [this, first, end] {
    std::size_t next = first;
    try {
      const std::vector<Emulations> some(wanted_.begin() + static_cast<std::ptrdiff_t>(first),
                                         wanted_.begin() + static_cast<std::ptrdiff_t>(end));
      gpu_answers_of(some, problem_, 0, problem_.dimensions().H, [&](std::size_t, AnswersOnGpu answers) {
        coming_[next++].set_value(std::move(answers));
      });
    } catch (...) {
      for (; next < end; ++next) coming_[next].set_exception(std::current_exception());
    }
  };
  try {
    working_ = std::async(std::launch::async, work);
    begun_ = end;
  } catch (const std::system_error&) {
    // No thread is to be had: it is computed when it is wanted.
  }
}

std::optional<AnswersOnGpu> TwinsAhead::take(const Emulations& wanted) {
  if (taken_ == begun_ || !are_same(wanted_[taken_], wanted)) return std::nullopt;
  AnswersOnGpu answers = coming_[taken_].get_future().get();
  if (++taken_ == begun_) begin(begun_ + 1);
  return answers;
}

}  // namespace kda_check::engine

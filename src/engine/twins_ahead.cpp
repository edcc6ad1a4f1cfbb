#include "engine/twins_ahead.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

namespace kda_check::engine {

namespace {

/// Whose answers there is room for: one is measured while the other comes.
constexpr std::size_t at_once = 2;

}  // namespace

TwinsAhead::TwinsAhead(const kda::Problem& problem, Families families)
    : problem_(problem), families_(std::move(families)), coming_(families_.size()) {
  begin(at_once);
}

void TwinsAhead::begin(std::size_t end) {
  const std::size_t first = begun_;
  end = std::min(end, families_.size());
  if (first >= end) return;
  const auto work = [this, first, end] {
    std::size_t next = first;
    try {
      const Families some(families_.begin() + static_cast<std::ptrdiff_t>(first),
                          families_.begin() + static_cast<std::ptrdiff_t>(end));
      gpu_answers_of(some, problem_, 0, problem_.dimensions().H, [&](std::size_t, FamilyAnswers answers) {
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

std::optional<FamilyAnswers> TwinsAhead::take(const std::vector<Twin>& family) {
  if (taken_ == begun_ || families_[taken_] != &family) return std::nullopt;
  FamilyAnswers answers = coming_[taken_].get_future().get();
  if (++taken_ == begun_) begin(begun_ + 1);
  return answers;
}

}  // namespace kda_check::engine

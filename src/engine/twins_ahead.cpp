#include "engine/twins_ahead.hpp"

#include <system_error>
#include <utility>

namespace kda_check::engine {

TwinsAhead::TwinsAhead(const kda::Problem& problem, std::vector<const std::vector<Twin>*> families)
    : problem_(problem), families_(std::move(families)) {
  begin_next();
}

void TwinsAhead::begin_next() {
  if (next_ == families_.size()) return;
  try {
    coming_ = std::async(std::launch::async, [this, &family = *families_[next_]] {
      return gpu_answers_of(family, problem_, 0, problem_.dimensions().H);
    });
  } catch (const std::system_error&) {
    // No thread is to be had: it is computed when it is wanted.
  }
}

std::optional<FamilyAnswers> TwinsAhead::take(const std::vector<Twin>& family) {
  if (!coming_.valid() || families_[next_] != &family) return std::nullopt;
  std::optional<FamilyAnswers> answers = coming_.get();
  ++next_;
  begin_next();
  return answers;
}

}  // namespace kda_check::engine

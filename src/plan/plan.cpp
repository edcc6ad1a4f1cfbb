#include "plan/plan.hpp"

#include <fmt/format.h>

namespace kda_check::plan {

std::string_view name_of(Question question) {
  switch (question) {
    case Question::verdict:
      return "verdict";
    case Question::stages:
      return "stages";
    case Question::growth:
      return "growth";
    case Question::overflow:
      return "overflow";
    case Question::power:
      return "power";
    case Question::capture:
      return "capture";
    case Question::faults:
      return "faults";
    case Question::identity:
      break;
  }
  return "identity";
}

std::string Problem::remark() const {
  return rounded_to ? fmt::format("inputs rounded to {}", numeric::name_of(*rounded_to)) : std::string();
}

double Plan::seconds() const {
  double total = 0;
  for (const Problem& problem : problems) total += problem.seconds;
  return total;
}

}  // namespace kda_check::plan

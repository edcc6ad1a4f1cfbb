// What tests of growth look for.
#pragma once

#include <string_view>

#include "support/catch.hpp"
#include "support/running.hpp"

namespace kda_check::test {

inline plan::Request growth_of(const std::string& target) { return explaining({target}, "growth"); }

inline Item followed(const report::Document& document, std::string_view answer, std::string_view tensor = "o",
                     std::string_view from = "start") {
  for (const Item& item : items_of(document, "growth"))
    if (item.words("answer") == answer && item.words("tensor") == tensor && item.words("from") == from)
      return item;
  throw std::out_of_range("no growth of " + std::string(tensor) + " of " + std::string(answer));
}

Item followed(report::Document&& document, std::string_view answer, std::string_view tensor = "o",
              std::string_view from = "start") = delete;

/// The row of a limit on one metric, crossed or not.
inline Row crossing(const Item& item, std::string_view metric) {
  for (const Row& row : item.rows("crossings"))
    if (row.words("metric") == metric) return row;
  throw std::out_of_range("no limit on " + std::string(metric));
}

}  // namespace kda_check::test

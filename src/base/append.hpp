#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace kda_check {

/// Behind what is in `out`.
template <class... Values>
void append(std::string& out, fmt::format_string<Values...> text, Values&&... values) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Values>(values)...);
}

}  // namespace kda_check

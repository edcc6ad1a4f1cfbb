#include "kda/arithmetic/axis_numbers.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/error.hpp"
#include "kda/arithmetic/arithmetic.hpp"

namespace kda_check::kda {

std::vector<std::string> examples_of(std::string_view name, Number number) {
  const auto with = [&](auto... values) { return std::vector{fmt::format("{}:{}", name, values)...}; };
  switch (number) {
    case Number::none:
      return {std::string(name)};
    case Number::rows:
      return with(16, 32, 64);
    case Number::few_rows:
      return with(8, 16);
    case Number::width:
      return with("N");
    case Number::bits:
      return with(24, 25);
    case Number::parts:
      return with("P");
    case Number::exponent:
      break;
  }
  return with("X");
}

double number_of(Number kind, std::string_view key, std::string_view value, std::size_t colon,
                 double fallback) {
  if (colon == std::string_view::npos) return fallback;
  const std::string_view text = value.substr(colon + 1);
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool read = failure == std::errc{} && end == text.data() + text.size();
  const bool whole = read && number == std::floor(number);
  switch (kind) {
    case Number::none:
      refuse_value(key, value, fmt::format("{} takes no number", value.substr(0, colon)));
    case Number::rows:
      if (!whole || (number != 16 && number != 32 && number != 64))
        refuse_value(key, value, "blocks have 16, 32 or 64 rows");
      break;
    case Number::few_rows:
      if (!whole || (number != 8 && number != 16)) refuse_value(key, value, "blocks have 8 or 16 rows");
      break;
    case Number::width:
      if (!whole || number < 2 || number > static_cast<double>(widest_tree))
        refuse_value(key, value, fmt::format("wanted 2 to {} terms", widest_tree));
      break;
    case Number::bits:
      if (!whole || number < 20 || number > 30) refuse_value(key, value, "wanted 20 to 30 bits");
      break;
    case Number::parts:
      if (!whole || number < 1 || number > 1024) refuse_value(key, value, "wanted 1 to 1024 parts");
      break;
    case Number::exponent:
      if (!read || !(number >= 1 && number <= 1000))
        refuse_value(key, value, "wanted an exponent of 2, 1 to 1000");
      break;
  }
  return number;
}

void refuse_value(std::string_view key, std::string_view value, const std::string& why,
                  const std::string& hint) {
  throw Error(ErrorKind::usage, fmt::format("--arithmetic {}={}: {}", key, value, why), {}, hint);
}

}  // namespace kda_check::kda

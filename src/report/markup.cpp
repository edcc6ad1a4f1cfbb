#include "report/markup.hpp"

#include <fmt/format.h>

#include "base/names.hpp"

namespace kda_check::report {

namespace {

/// Every character of `marks` replaced by what `replace` gives for it.
template <class Replace>
std::string replaced(std::string_view text, std::string_view marks, Replace replace) {
  std::string result;
  for (const char c : printable(text))
    if (marks.find(c) == std::string_view::npos)
      result += c;
    else
      result += replace(c);
  return result;
}

std::string reference(char c) { return fmt::format("&#{};", static_cast<int>(c)); }
std::string percent(char c) { return fmt::format("%{:02X}", static_cast<unsigned>(c)); }

}  // namespace

std::string escaped(std::string_view text) { return replaced(text, "&<>\"'", reference); }

std::string markdown(std::string_view text) {
  return replaced(text, "&<>\\`*_[]|~#$@", [](char c) {
    return std::string_view("&<>@").find(c) != std::string_view::npos ? reference(c) : std::string{'\\', c};
  });
}

std::string command_message(std::string_view text) { return replaced(text, "%\r\n", percent); }

std::string command_property(std::string_view text) { return replaced(text, "%\r\n:,", percent); }

}  // namespace kda_check::report

#include "report/markup.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "base/names.hpp"

namespace kda_check::report {

namespace {

/// Bytes of the well-formed UTF-8 sequence at the start of `text` that XML allows; 0: there is none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : std::uint32_t{0};
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  std::uint32_t point = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = point >= 0xd800 && point < 0xe000;
  // The last two of every plane are no characters, nor are FDD0 to FDEF.
  const bool is_nothing = (point & 0xfffeu) == 0xfffe || (point >= 0xfdd0 && point < 0xfdf0);
  // Marks that turn the direction of what follows could hide the rest of a line.
  const bool turns = (point >= 0x202a && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069) ||
                     point == 0x2028 || point == 0x2029;
  return point < least[length] || point > 0x10ffff || is_surrogate || is_nothing || turns ? 0 : length;
}

/// Every character of `marks` replaced by what `replace` gives for it.
template <class Replace>
std::string replaced(std::string_view text, std::string_view marks, Replace replace) {
  std::string result;
  for (const char c : valid_text(text))
    if (marks.find(c) == std::string_view::npos)
      result += c;
    else
      result += replace(c);
  return result;
}

std::string reference(char c) { return fmt::format("&#{};", static_cast<int>(c)); }
std::string percent(char c) { return fmt::format("%{:02X}", static_cast<unsigned>(c)); }

}  // namespace

std::string valid_text(std::string_view text) {
  const std::string clean = printable(text);
  std::string result;
  for (std::size_t at = 0; at < clean.size();) {
    const std::size_t length = sequence_length(std::string_view(clean).substr(at));
    if (length == 0)
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(clean[at++]));
    else
      result += clean.substr(at, length), at += length;
  }
  return result;
}

std::string escaped(std::string_view text) { return replaced(text, "&<>\"'", reference); }

std::string markdown(std::string_view text) {
  return replaced(text, "&<>\\`*_[]|~#$@", [](char c) {
    return std::string_view("&<>@").find(c) != std::string_view::npos ? reference(c) : std::string{'\\', c};
  });
}

std::string command_message(std::string_view text) { return replaced(text, "%\r\n", percent); }

std::string command_property(std::string_view text) { return replaced(text, "%\r\n:,", percent); }

}  // namespace kda_check::report

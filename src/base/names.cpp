#include "base/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

namespace kda_check {

namespace {

// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = previous[j - 1] + (a[i - 1] != b[j - 1]);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

struct Character {
  std::optional<std::uint32_t> point;  ///< nullopt: a byte that is no UTF-8
  std::size_t bytes;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(text[i])}; };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || length > text.size()) return {std::nullopt, 1};
  std::uint32_t point = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return {std::nullopt, 1};
    point = point << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = point >= 0xd800 && point < 0xe000;
  if (point < least[length] || point > 0x10ffff || is_surrogate) return {std::nullopt, 1};
  return {point, length};
}

/// Characters that a terminal or a page obeys instead of showing them, or that show nothing at all: text
/// could hide or forge what stands around it.
bool is_hidden(std::uint32_t point) {
  constexpr std::pair<std::uint32_t, std::uint32_t> ranges[] = {
      {0x0000, 0x001f},
      {0x007f, 0x009f},  // control characters
      {0x00ad, 0x00ad},  // soft hyphen
      {0x061c, 0x061c},
      {0x200b, 0x200f},  // marks of direction, nothing wide
      {0x2028, 0x202e},
      {0x2060, 0x206f},  // ends of lines and paragraphs, turns of direction, invisible signs
      {0xfdd0, 0xfdef},
      {0xfeff, 0xfeff},  // no characters; byte order mark
      {0xfff9, 0xfffb},
      {0xe0000, 0xe0fff},  // annotations, tags
  };
  if ((point & 0xfffeu) == 0xfffe) return true;  // the last two of every plane are no characters
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const auto& range) { return point >= range.first && point <= range.second; });
}

/// White space by Unicode, of what is not hidden.
bool is_blank(std::uint32_t point) {
  return point == 0x20 || point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) ||
         point == 0x202f || point == 0x205f || point == 0x3000;
}

}  // namespace

std::string join(const std::vector<std::string>& names, std::string_view separator) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += separator;
    text += name;
  }
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::vector<std::string> split_commas(std::string_view text) { return split(text, ','); }

std::vector<std::string> without_repeats(std::vector<std::string> names) {
  auto end = names.begin();
  for (std::string& name : names)
    if (std::find(names.begin(), end, name) == end) *end++ = std::string(name);
  names.erase(end, names.end());
  return names;
}

std::string printable(std::string_view text) {
  std::string result;
  bool at_start = true;
  while (!text.empty()) {
    const Character first = first_character(text);
    const std::string_view bytes = text.substr(0, first.bytes);
    // What a runner of workflows would obey: "::" at the start of a line, "##[" anywhere in it.
    const bool is_command = (at_start && text.starts_with("::")) || text.starts_with("##[");
    at_start = at_start && first.point && is_blank(*first.point);
    if (first.point && !is_hidden(*first.point) && !is_command) {
      result += bytes;
    } else if (first.point && *first.point >= 0x100) {
      result += fmt::format("\\u{:04x}", *first.point);
    } else {
      for (const char byte : bytes) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    text.remove_prefix(bytes.size());
  }
  return result;
}

std::string suggest(std::string_view unknown, const std::vector<std::string>& candidates) {
  const std::string* nearest = nullptr;
  std::size_t least = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(unknown, candidate);
    const std::size_t allowed = std::max<std::size_t>(2, candidate.size() / 3);
    if (distance <= allowed && (!nearest || distance < least)) {
      nearest = &candidate;
      least = distance;
    }
  }
  if (nearest) return "did you mean '" + *nearest + "'?";
  return candidates.empty() ? std::string() : "one of: " + join(candidates);
}

}  // namespace kda_check

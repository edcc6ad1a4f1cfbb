#include "base/names.hpp"

#include <algorithm>

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
  constexpr char digits[] = "0123456789abcdef";
  std::string result;
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned char>(i < text.size() ? text[i] : ' ');
  };
  const auto is_control = [&](std::size_t i) { return byte(i) < 0x20 || byte(i) == 0x7f; };
  // In UTF-8 the control characters U+0080 to U+009F are C2 80 to C2 9F.
  const auto is_wide_control = [&](std::size_t i) {
    return byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_control(i) || is_wide_control(i) || (i > 0 && is_wide_control(i - 1))) {
      result += "\\x";
      result += digits[byte(i) / 16];
      result += digits[byte(i) % 16];
    } else {
      result += text[i];
    }
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

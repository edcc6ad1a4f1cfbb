#include "kda/launch_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>

#include "base/error.hpp"

namespace kda_check::kda {

namespace {

struct LayoutName {
  std::string_view name;
  RowLayout Launch::*layout;
};
constexpr LayoutName layouts[] = {
    {"norm", &Launch::norm}, {"pairs", &Launch::pairs}, {"substitution", &Launch::substitution}};

/// What a block of threads has at most, and what kernels have room for.
constexpr std::size_t most_registers = 128, most_lanes = 32, most_warps = 16, most_scan_rows = 64;

[[noreturn]] void refuse(std::string_view words, const std::string& why, const std::string& hint) {
  throw Error(ErrorKind::usage, fmt::format("--arithmetic launch={}: {}", words, why), {}, hint);
}

/// The power of two at the start of `text`, which goes on behind it. 0: there is none, or one beyond `most`.
std::size_t number_in(std::string_view& text, std::size_t most) {
  std::size_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{} || !std::has_single_bit(number) || number > most) return 0;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

/// "8x16x1"
bool read(std::string_view text, RowLayout& layout) {
  layout.registers = number_in(text, most_registers);
  if (!take(text, 'x')) return false;
  layout.lanes = number_in(text, most_lanes);
  if (!take(text, 'x')) return false;
  layout.warps = number_in(text, most_warps);
  return text.empty() && layout.registers > 0 && layout.lanes > 0 && layout.warps > 0;
}

void set_part(Launch& launch, std::string_view words, std::string_view part) {
  const std::size_t colon = std::min(part.find(':'), part.size());
  const std::string_view name = part.substr(0, colon);
  std::string_view value = part.substr(std::min(colon + 1, part.size()));
  if (name == "scan") {
    launch.scan_rows = number_in(value, most_scan_rows);
    if (launch.scan_rows == 0 || !value.empty())
      refuse(words, fmt::format("{}: wanted a power of two up to {}", part, most_scan_rows), "scan:4");
    return;
  }
  const auto row = std::ranges::find(layouts, name, &LayoutName::name);
  if (row == std::end(layouts))
    refuse(words, fmt::format("no part '{}'", name), "norm, pairs, substitution or scan");
  if (!read(value, launch.*row->layout))
    refuse(words,
           fmt::format("{}: wanted registers, lanes and warps, powers of two up to {}, {} and {}", part,
                       most_registers, most_lanes, most_warps),
           fmt::format("{}:4x16x1", name));
}

}  // namespace

Launch launch_from(std::string_view words) {
  Launch launch;
  if (words == "any") return launch;
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find('+', begin), words.size());
    set_part(launch, words, words.substr(begin, end - begin));
    begin = end + 1;
  }
  return launch;
}

std::string words_of(const Launch& launch) {
  std::string text;
  for (const auto& [name, layout] : layouts)
    if (const RowLayout& row = launch.*layout; row.registers > 0)
      fmt::format_to(std::back_inserter(text), "{}{}:{}x{}x{}", text.empty() ? "" : "+", name, row.registers,
                     row.lanes, row.warps);
  if (launch.scan_rows > 0)
    fmt::format_to(std::back_inserter(text), "{}scan:{}", text.empty() ? "" : "+", launch.scan_rows);
  return text.empty() ? "any" : text;
}

}  // namespace kda_check::kda

#include "kda/arithmetic/launch_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <string>

#include "base/append.hpp"
#include "base/error.hpp"

namespace kda_check::kda {

namespace {

/// What a block of threads has at most, and what kernels have room for.
constexpr std::size_t most_registers = 128, most_lanes = 32, most_warps = 16, most_rows = 64,
                      most_columns = 256, most_columns_of_token = 128;

static_assert(most_lanes * 2 * most_warps <= widest_tree, "each thread of a row has a sum");

/// A part of a launch: one to three numbers, with an x between.
struct Part {
  std::string_view name, example;
  std::size_t count;
  std::array<std::size_t, 3> most;
  std::array<std::size_t*, 3> (*numbers)(Launch&);
  bool of_token_forms = false;  ///< else of the chunk form
};

template <RowLayout Launch::*layout>
std::array<std::size_t*, 3> of_row(Launch& launch) {
  RowLayout& row = launch.*layout;
  return {&row.registers, &row.lanes, &row.warps};
}
template <std::size_t Launch::*number>
std::array<std::size_t*, 3> only(Launch& launch) {
  return {&(launch.*number)};
}
std::array<std::size_t*, 3> of_block(Launch& launch) {
  return {&launch.wy.keys, &launch.wy.values, &launch.wy.warps};
}

std::array<std::size_t*, 3> of_program(Launch& launch) {
  return {&launch.block.columns, &launch.block.warps};
}

constexpr std::array<std::size_t, 3> of_a_row = {most_registers, most_lanes, most_warps};
constexpr Part parts[] = {
    {"norm", "4x16x1", 3, of_a_row, of_row<&Launch::norm>},
    {"pairs", "4x16x1", 3, of_a_row, of_row<&Launch::pairs>},
    {"substitution", "1x8x1", 3, of_a_row, of_row<&Launch::substitution>},
    {"scan", "4", 1, {most_rows}, only<&Launch::scan_rows>},
    {"block", "8x1", 2, {most_columns_of_token, most_warps}, of_program, true},
    {"wy", "64x64x4", 3, {most_columns, most_columns, most_warps}, of_block},
    {"intra", "4", 1, {most_warps}, only<&Launch::intra_warps>},
    {"reverse-scan", "4", 1, {most_rows}, only<&Launch::reverse_scan_rows>},
    {"norm-backward", "4x16x1", 3, of_a_row, of_row<&Launch::norm_gradient>},
    {"gate-backward", "4", 1, {2 * most_warps}, only<&Launch::gate_warps>},
};

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
bool read(std::string_view text, const Part& part, Launch& launch) {
  const std::array<std::size_t*, 3> numbers = part.numbers(launch);
  for (std::size_t i = 0; i < part.count; ++i) {
    if (i > 0 && !take(text, 'x')) return false;
    *numbers[i] = number_in(text, part.most[i]);
    if (*numbers[i] == 0) return false;
  }
  return text.empty();
}

void set_part(Launch& launch, std::string_view words, std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, colon);
  const auto part = std::ranges::find(parts, name, &Part::name);
  if (part == std::end(parts)) {
    std::string names;
    for (const Part& one : parts) append(names, "{}{}", names.empty() ? "" : ", ", one.name);
    refuse(words, fmt::format("no part '{}'", name), names);
  }
  if (*part->numbers(launch)[0] != 0) refuse(words, fmt::format("{} is named twice", name), "one of them");
  if (read(text.substr(std::min(colon + 1, text.size())), *part, launch)) return;
  std::string most;
  for (std::size_t i = 0; i < part->count; ++i) append(most, "{}{}", i == 0 ? "" : "x", part->most[i]);
  refuse(words,
         fmt::format("{}: wanted {} up to {}", text, part->count == 1 ? "a power of two" : "powers of two",
                     most),
         fmt::format("{}:{}", name, part->example));
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
  Launch copy = launch;
  for (const Part& part : parts) {
    const std::array<std::size_t*, 3> numbers = part.numbers(copy);
    if (*numbers[0] == 0) continue;  // a row without registers still has lanes and warps
    append(text, "{}{}:", text.empty() ? "" : "+", part.name);
    for (std::size_t i = 0; i < part.count; ++i) append(text, "{}{}", i == 0 ? "" : "x", *numbers[i]);
  }
  return text.empty() ? "any" : text;
}

std::string_view foreign_part(const Launch& launch, bool chunk) {
  Launch copy = launch;
  for (const Part& part : parts)
    if (part.of_token_forms == chunk && *part.numbers(copy)[0] != 0) return part.name;
  return {};
}

std::string_view idle_part(const Launch& launch, const Reduction& reduction) {
  if (is_triton(reduction)) return {};
  Launch rest = launch;
  if (is_by_lanes(reduction)) rest.norm = {};
  if (reduction.kind == ReductionKind::xla) rest.scan_rows = 0;
  for (const Part& part : parts)
    if (*part.numbers(rest)[0] != 0) return part.name;
  return {};
}

}  // namespace kda_check::kda

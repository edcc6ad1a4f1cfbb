#include "report/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kda_check::report {

namespace {

/// Characters, not bytes: blocks of sparklines have three.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80; }));
}

}  // namespace

std::string TextTable::text(const std::string& indent) const {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < headings_.size(); ++column) {
    widths.push_back(width_of(headings_[column].text));
    for (const Row& row : rows_) widths[column] = std::max(widths[column], width_of(row.cells[column]));
  }
  std::string out;
  const auto line = [&](const auto& cell, const std::string& code) {
    std::string text = indent;
    for (std::size_t column = 0; column < headings_.size(); ++column) {
      const std::string& content = cell(column);
      const std::string padding(widths[column] - width_of(content), ' ');
      if (headings_[column].to_the_right) text += padding;
      text += column == 0 && !code.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, content) : content;
      if (!headings_[column].to_the_right) text += padding;
      text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t column) -> const std::string& { return headings_[column].text; }, {});
  for (const Row& row : rows_)
    line([&](std::size_t column) -> const std::string& { return row.cells[column]; }, row.code);
  return out;
}

}  // namespace kda_check::report

#include "report/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kda_check::report {

std::string Table::text(const std::string& indent) const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& row : rows_)
    for (std::size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  std::string out;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (std::size_t column = 0; column < row.size(); ++column) {
      const bool left = column < left_aligned_ || column + 1 == widths.size();
      if (left) {
        fmt::format_to(std::back_inserter(line), "{:<{}}  ", row[column], widths[column]);
      } else {
        fmt::format_to(std::back_inserter(line), "{:>{}}  ", row[column], widths[column]);
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace kda_check::report

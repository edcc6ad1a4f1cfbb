// Where an error lies, for drawings: by heads and by something else.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace kda_check::judge {

/// At most 64 groups of heads and 64 of cells, whatever the tensor.
struct ErrorMap {
  std::string_view across = "tokens";                  ///< what cells are
  std::string_view sign = "t";                         ///< in front of its number: "t=40..47"
  std::size_t heads = 0, cells = 0;                    ///< 0: there is nothing to draw
  std::size_t heads_together = 1, cells_together = 1;  ///< in each group but the last
  std::vector<double> error;  ///< [group of heads][group of cells]; infinite where classes differ

  static constexpr std::size_t most_groups = 64;
  static std::size_t together(std::size_t count) { return count == 0 ? 1 : divided_up(count, most_groups); }
  static std::size_t divided_up(std::size_t count, std::size_t by) { return (count + by - 1) / by; }
  std::size_t groups_of_heads() const { return divided_up(heads, heads_together); }
  std::size_t groups_of_cells() const { return divided_up(cells, cells_together); }
};

}  // namespace kda_check::judge

// The errors of an answer in units of what its worst twin errs by, as maps.
#include <algorithm>
#include <cmath>

#include "judge/spread/twin_test.hpp"

namespace kda_check::judge {

namespace {

/// Means of e^2 / s^2 while they are added up.
class MapSums {
 public:
  MapSums(std::string_view across, std::string_view sign, std::size_t heads, std::size_t cells) {
    map_.across = across, map_.sign = sign, map_.heads = heads, map_.cells = cells;
    map_.heads_together = ErrorMap::together(heads), map_.cells_together = ErrorMap::together(cells);
    energy_.resize(map_.groups_of_heads() * map_.groups_of_cells());
    elements_.resize(energy_.size());
  }
  void add(std::size_t head, std::size_t cell, double energy, double elements) {
    const std::size_t at = head / map_.heads_together * map_.groups_of_cells() + cell / map_.cells_together;
    energy_[at] += energy, elements_[at] += elements;
  }
  ErrorMap map() && {
    for (std::size_t i = 0; i < energy_.size(); ++i) {
      const double mean = elements_[i] > 0 ? energy_[i] / elements_[i] : 0;
      map_.error.push_back(std::isfinite(mean) ? std::sqrt(mean) : HUGE_VAL);
    }
    return std::move(map_);
  }

 private:
  ErrorMap map_;
  std::vector<double> energy_, elements_;
};

}  // namespace

std::vector<ErrorMap> TwinTest::maps(std::size_t answer) const {
  const RowLayout& layout = setting_.layout;
  const auto positions =
      std::ranges::find(row_cells_, std::optional(Region::position_of_head), &RowCells::of_head);
  const bool has_positions = layout.of_tokens && positions != row_cells_.end();
  MapSums rows(layout.of_tokens ? "tokens" : "rows", layout.of_tokens ? "t" : "row", layout.heads,
               layout.rows),
      in_chunk("rows of chunks", "row", layout.heads, has_positions ? positions->count : 0),
      columns("columns", "column", layout.heads, layout.width);
  for (std::size_t head = 0; head < layout.heads; ++head) {
    const HeadErrors& errors = heads_[head].errors;
    if (errors.fields.empty()) continue;
    const ErrorSums& sums = errors.fields[setting_.twins + answer];
    for (std::size_t r = 0; r < sums.row_energy.size(); ++r) {
      const auto energy = static_cast<double>(sums.row_energy[r]),
                 width = static_cast<double>(layout.columns(r));
      rows.add(head, r, energy, width);
      if (has_positions && positions->cell[r] != no_cell)
        in_chunk.add(head, positions->cell[r], energy, width);
    }
    for (std::size_t v = 0; v < layout.width; ++v)
      columns.add(head, v, sums.column_energy[v], column_elements_[v]);
  }
  std::vector<ErrorMap> maps;
  maps.push_back(std::move(rows).map());
  if (has_positions && positions->count > 1) maps.push_back(std::move(in_chunk).map());
  if (layout.width > 1) maps.push_back(std::move(columns).map());
  return maps;
}

}  // namespace kda_check::judge

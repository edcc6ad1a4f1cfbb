#include "engine/parity.hpp"

#include <fmt/format.h>

namespace kda_check::engine {

using report::Show;

ParityTable::ParityTable()
    : cells_(explain::parity_ways().size(), std::vector<std::string>(explain::parity_ways().size())) {}

void ParityTable::take(const explain::Trial& trial, const kda::Problem& problem) {
  const std::string difference = explain::first_difference(trial, problem);
  cells_[trial.place->row][trial.place->column] = difference.empty() ? "bits" : difference;
  is_empty_ = false;
}

report::Section ParityTable::section(const Answered& who, const std::string& path,
                                     const std::string& repro) const {
  const std::vector<std::string_view> ways = explain::parity_ways();
  report::Section section;
  section.key = "parity", section.path = path;
  section.columns = {{"answer", {}, Show::data},
                     {"dtype", {}, Show::data},
                     {"arithmetic", {}, Show::data},
                     {"repro", {}, Show::data}};
  report::Table table;
  table.key = "ways";
  table.columns = {{"way", {}}};
  for (std::size_t column = 0; column + 1 < ways.size(); ++column)
    table.columns.push_back({std::string(ways[column]), {}});
  for (std::size_t row = 1; row < ways.size(); ++row) {
    table.rows.push_back({std::string(ways[row])});
    for (std::size_t column = 0; column + 1 < ways.size(); ++column)
      table.rows.back().emplace_back(column >= row                 ? std::string()
                                     : cells_[row][column].empty() ? std::string("-")
                                                                   : cells_[row][column]);
  }
  const std::string dtype(numeric::name_of(who.dtype));
  report::Entry& entry = section.add({who.name, dtype, who.arithmetic, repro});
  entry.title =
      fmt::format("parity of {} in {}: bits are equal, or where they differ first", who.name, dtype);
  entry.tables.push_back(std::move(table));
  return section;
}

}  // namespace kda_check::engine

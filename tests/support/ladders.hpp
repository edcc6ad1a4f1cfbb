// What tests of `attribute` look for.
#pragma once

#include <string>
#include <vector>

#include "support/running.hpp"

namespace kda_check::test {

inline std::vector<std::string> changes(const Item& ladder) {
  std::vector<std::string> list;
  for (const Row& rung : ladder.rows("rungs")) list.push_back(rung.words("change"));
  return list;
}

inline double sum_of_shares(const Item& ladder) {
  double sum = 0;
  for (const Row& rung : ladder.rows("rungs")) sum += rung.figure("share");
  return sum;
}

/// Elements that still differ when all steps are taken but that to the answer itself.
inline std::int64_t unexplained(const Item& ladder) {
  const std::vector<Row> rungs = ladder.rows("rungs");
  return rungs.at(rungs.size() - 2).count("differing");
}

/// The axes of an attribution, without the rows for the ideal arithmetic and the interaction.
inline std::vector<Row> axes(const Item& attribution) {
  std::vector<Row> rows = attribution.rows("axes");
  rows.resize(rows.size() - 2, rows.front());
  return rows;
}

inline Row axis(const Item& attribution, std::string_view name) {
  for (const Row& row : axes(attribution))
    if (row.words("axis") == name) return row;
  throw std::out_of_range("no axis " + std::string(name));
}

/// Of all its rows: 1.
inline double sum_of_axes(const Item& attribution) {
  double sum = attribution.figure("ideal_share") + attribution.figure("interaction");
  for (const Row& row : axes(attribution)) sum += row.figure("share");
  return sum;
}

}  // namespace kda_check::test

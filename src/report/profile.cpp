#include "report/profile.hpp"

namespace kda_check::report {

namespace {

struct Sums {
  numeric::ProductSum difference2, expected2;

  void add(const judge::TokenErrors& errors) {
    difference2.add(errors.difference2);
    expected2.add(errors.expected2);
  }
  double ratio() const { return relative_size(difference2, expected2); }
};

}  // namespace

ErrorProfile profile_of(const judge::Measures& measures, const judge::TokenSeries& series) {
  ErrorProfile profile;
  profile.distances = measures.distances.by_power_of_two();
  if (series.cells.empty()) return profile;
  ErrorMap& map = profile.heat;
  map.heads = series.heads, map.tokens = series.tokens;
  map.heads_together = ErrorMap::together(series.heads);
  map.tokens_together = ErrorMap::together(series.tokens);
  const std::size_t windows = map.groups_of_tokens();
  std::vector<Sums> growth(windows), heat(map.groups_of_heads() * windows);
  for (std::size_t row = 0; row < series.rows; ++row)
    for (std::size_t token = 0; token < series.tokens; ++token)
      for (std::size_t head = 0; head < series.heads; ++head) {
        const judge::TokenErrors& cell = series.at(row, token, head);
        const std::size_t window = token / map.tokens_together, group = head / map.heads_together;
        growth[window].add(cell);
        heat[group * windows + window].add(cell);
      }
  for (const Sums& sums : growth) profile.growth.push_back(sums.ratio());
  for (const Sums& sums : heat) map.error.push_back(sums.ratio());
  return profile;
}

}  // namespace kda_check::report

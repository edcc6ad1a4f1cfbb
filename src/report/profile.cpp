#include "report/profile.hpp"

namespace kda_check::report {

namespace {

constexpr std::size_t most_windows = 64, most_groups = 64;

struct Sums {
  numeric::ProductSum difference2, expected2;

  void add(const judge::TokenErrors& errors) {
    difference2.add(errors.difference2);
    expected2.add(errors.expected2);
  }
  double ratio() const { return relative_size(difference2, expected2); }
};

std::size_t divided_up(std::size_t count, std::size_t by) { return (count + by - 1) / by; }

}  // namespace

ErrorProfile profile_of(const judge::Measures& measures, const judge::TokenSeries& series) {
  ErrorProfile profile;
  profile.distances = measures.distances.by_power_of_two();
  if (series.cells.empty()) return profile;
  profile.tokens = series.tokens;
  profile.heads = series.heads;
  profile.window = divided_up(series.tokens, most_windows);
  profile.heads_together = divided_up(series.heads, most_groups);
  const std::size_t windows = divided_up(series.tokens, profile.window);
  const std::size_t groups = divided_up(series.heads, profile.heads_together);
  std::vector<Sums> growth(windows), heat(groups * windows);
  for (std::size_t row = 0; row < series.rows; ++row)
    for (std::size_t token = 0; token < series.tokens; ++token)
      for (std::size_t head = 0; head < series.heads; ++head) {
        const judge::TokenErrors& cell = series.at(row, token, head);
        const std::size_t window = token / profile.window, group = head / profile.heads_together;
        growth[window].add(cell);
        heat[group * windows + window].add(cell);
      }
  for (const Sums& sums : growth) profile.growth.push_back(sums.ratio());
  for (const Sums& sums : heat) profile.heat.push_back(sums.ratio());
  return profile;
}

}  // namespace kda_check::report

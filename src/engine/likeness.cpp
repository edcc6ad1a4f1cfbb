#include "engine/likeness.hpp"

#include <algorithm>
#include <vector>

namespace kda_check::engine {

namespace {

constexpr std::size_t most_rows = 4096;   ///< that are looked at
constexpr double most_unexplained = 0.1;  ///< of the squares of the error

struct Shift {
  int rows, heads;
  const char* row_name;  ///< of o and gradients; of states rows are channels
  const char* channel_name;
};
constexpr Shift shifts[] = {
    {-1, 0, "the values of the token before", "the values of the row before"},
    {1, 0, "the values of the token after", "the values of the row after"},
    {0, -1, "the values of the head before", "the values of the head before"},
    {0, 1, "the values of the next head", "the values of the next head"},
};

/// The row that far away; of the same sequence, or none.
bool shifted(const judge::RowLayout& layout, judge::RowPlace& place, const Shift& shift) {
  const auto sequence_end = std::ranges::upper_bound(layout.starts, place.row);
  const auto row = static_cast<std::ptrdiff_t>(place.row) + shift.rows,
             head = static_cast<std::ptrdiff_t>(place.head) + shift.heads;
  if (row < static_cast<std::ptrdiff_t>(*(sequence_end - 1)) ||
      row >= static_cast<std::ptrdiff_t>(*sequence_end) || head < 0 ||
      head >= static_cast<std::ptrdiff_t>(layout.heads))
    return false;
  place = {static_cast<std::size_t>(row), static_cast<std::size_t>(head)};
  return true;
}

}  // namespace

std::string likeness(const judge::Excess& excess, const judge::RowLayout& layout,
                     const judge::TruthValues& truth, const tensor::Tensor& answer) {
  const std::vector<judge::RowPlace> rows =
      judge::rows_in(excess.region, excess.head, excess.cell, layout, most_rows);
  if (rows.empty()) return {};
  bool zero = true, truth_is_zero = true;
  double error = 0;
  for (const judge::RowPlace& place : rows)
    for (std::size_t v = 0; v < layout.width; ++v) {
      const std::size_t at = layout.element(place.row, place.head, v);
      const double got = answer.value(at), difference = got - truth[at];
      zero = zero && got == 0, truth_is_zero = truth_is_zero && truth[at] == 0;
      error += difference * difference;
    }
  if (zero && !truth_is_zero) return "zero";
  for (const Shift& shift : shifts) {
    double left = 0;
    std::size_t compared = 0;
    for (const judge::RowPlace& place : rows) {
      judge::RowPlace other = place;
      if (!shifted(layout, other, shift)) continue;  // the first of many has none before it
      ++compared;
      for (std::size_t v = 0; v < layout.width; ++v) {
        const double difference = answer.value(layout.element(place.row, place.head, v)) -
                                  truth[layout.element(other.row, other.head, v)];
        left += difference * difference;
      }
    }
    if (2 * compared > rows.size() && left < most_unexplained * error)
      return layout.of_tokens ? shift.row_name : shift.channel_name;
  }
  return {};
}

}  // namespace kda_check::engine

#include "engine/likeness.hpp"

#include <algorithm>
#include <iterator>

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

Likeness::Likeness(const judge::Excess& excess, const judge::RowLayout& layout, const tensor::Tensor& answer)
    : layout_(layout), answer_(answer), looks_(layout.heads), sums_(layout.heads) {
  static_assert(std::size(shifts) == shift_count);
  for (const judge::RowPlace& place :
       judge::rows_in(excess.region, excess.head, excess.cell, layout, most_rows)) {
    ++rows_;
    looks_[place.head].push_back({place, place.row, shift_count});
    for (std::size_t shift = 0; shift < shift_count; ++shift) {
      judge::RowPlace other = place;
      if (!shifted(layout, other, shifts[shift])) continue;  // the first of many has none before it
      ++compared_[shift];
      looks_[other.head].push_back({place, other.row, shift});
    }
  }
}

void Likeness::take(std::size_t head, const judge::HeadRows& truth) {
  std::vector<double> row(judge::padded_width(layout_.width));
  Sums& sums = sums_[head];
  for (const Look& look : looks_[head]) {
    truth.read(look.truth_row, row.data());
    const bool own = look.shift == shift_count;
    double& squares = own ? sums.error : sums.left[look.shift];
    for (std::size_t v = 0; v < layout_.width; ++v) {
      const double got = answer_.value(layout_.element(look.place.row, look.place.head, v)),
                   difference = got - row[v];
      squares += difference * difference;
      if (own) sums.zero = sums.zero && got == 0, sums.truth_is_zero = sums.truth_is_zero && row[v] == 0;
    }
  }
}

std::string Likeness::text() const {
  if (rows_ == 0) return {};
  Sums all;
  for (const Sums& sums : sums_) {
    all.zero = all.zero && sums.zero, all.truth_is_zero = all.truth_is_zero && sums.truth_is_zero;
    all.error += sums.error;
    for (std::size_t shift = 0; shift < shift_count; ++shift) all.left[shift] += sums.left[shift];
  }
  if (all.zero && !all.truth_is_zero) return "zero";
  for (std::size_t shift = 0; shift < shift_count; ++shift)
    if (2 * compared_[shift] > rows_ && all.left[shift] < most_unexplained * all.error)
      return layout_.of_tokens ? shifts[shift].row_name : shifts[shift].channel_name;
  return {};
}

}  // namespace kda_check::engine

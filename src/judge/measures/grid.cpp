#include "judge/measures/grid.hpp"

#include <algorithm>

#include "judge/measures/tensor_axes.hpp"

namespace kda_check::judge {

namespace {

void add(Cell& sum, const Cell& cell) {
  sum.difference2.add(cell.difference2);
  sum.expected2.add(cell.expected2);
  sum.product.add(cell.product);
  sum.elements += cell.elements;
}

}  // namespace

void Cell::add(double difference, double expected) {
  difference2.add_square(difference);
  expected2.add_square(expected);
  product.add(difference, expected);
}

Grid::Grid(std::size_t windows, std::size_t heads, double smallest_step)
    : windows_(windows),
      has_heads_(heads > 0),
      smallest_step_(smallest_step),
      heads_(std::max<std::size_t>(1, heads)) {}

double Grid::ratio_beyond_step(const Cell& cell) const {
  if (2 * cell.difference2.root_mean(cell.elements) <= smallest_step_) return 0;
  return relative_size(cell.difference2, cell.expected2);
}

void Grid::reach(std::size_t end) {
  if (end > first_) cells_.resize(std::max(cells_.size(), (end - first_) * heads_.size()));
}

void Grid::fold(std::size_t end) {
  const std::size_t count = end > first_ ? end - first_ : 0;
  for (std::size_t row = 0; row < count; ++row) {
    Cell window;
    for (std::size_t head = 0; head < heads_.size(); ++head) {
      const Cell& cell = cells_[row * heads_.size() + head];
      add(window, cell);
      add(heads_[head], cell);
    }
    add(whole_, window);
    if (windows_ == 0) continue;
    if (const double error = ratio_beyond_step(window); error > worst_window_ || worst_row_ == no_element) {
      worst_window_ = error;
      worst_row_ = first_ + row;
    }
  }
  cells_.erase(cells_.begin(), cells_.begin() + static_cast<std::ptrdiff_t>(count * heads_.size()));
  first_ += count;
}

void Grid::conclude(Measures& measures) const {
  if (worst_row_ != no_element) {
    measures.window_rms_ratio = worst_window_;
    measures.window_batch = worst_row_ / windows_;
    measures.window_token = worst_row_ % windows_ * window_tokens;
  }
  for (std::size_t head = 0; has_heads_ && head < heads_.size(); ++head)
    if (const double error = ratio_beyond_step(heads_[head]);
        error > measures.head_rms_ratio || measures.worst_head == no_element) {
      measures.head_rms_ratio = error;
      measures.worst_head = head;
    }
  measures.rms_ratio = relative_size(whole_.difference2, whole_.expected2);
  measures.bias = whole_.expected2.is_zero() ? 0 : quotient(whole_.product, whole_.expected2);
  measures.expected_rms = whole_.expected2.root_mean(whole_.elements);
  measures.smallest_step = smallest_step_;
}

}  // namespace kda_check::judge

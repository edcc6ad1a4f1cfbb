// Columns of text, each as wide as its widest cell.
#pragma once

#include <string>
#include <vector>

namespace kda_check::report {

class Table {
 public:
  explicit Table(std::vector<std::string> headings, std::size_t left_aligned = 1)
      : left_aligned_(left_aligned), rows_{std::move(headings)} {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.size() < 2; }
  /// Every line begins with `indent`; the last column is not padded.
  std::string text(const std::string& indent) const;

 private:
  std::size_t left_aligned_;  ///< so many first columns, and the last one
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kda_check::report

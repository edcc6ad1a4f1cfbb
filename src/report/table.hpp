// Tables of text: columns as wide as their widest cell.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kda_check::report {

class TextTable {
 public:
  struct Heading {
    std::string text;
    bool to_the_right = false;  ///< figures
  };
  explicit TextTable(std::vector<Heading> headings) : headings_(std::move(headings)) {}

  /// One cell for each heading. `code`: of the colour of the first cell, "32"; empty: none.
  void add(std::vector<std::string> cells, std::string code = {}) {
    rows_.push_back({std::move(cells), std::move(code)});
  }
  bool empty() const { return rows_.empty(); }

  /// Headings and rows, each a line behind `indent`.
  std::string text(const std::string& indent) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::string code;
  };
  std::vector<Heading> headings_;
  std::vector<Row> rows_;
};

}  // namespace kda_check::report

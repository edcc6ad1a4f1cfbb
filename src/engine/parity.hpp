// The parity matrix of `run --invariants=parity` as a section of the report.
#pragma once

#include <string>
#include <vector>

#include "engine/answered.hpp"
#include "explain/invariants/parity.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// What became of the pairs of ways of one answer.
class ParityTable {
 public:
  ParityTable();
  /// A trial that has a place.
  void take(const explain::Trial& trial, const kda::Problem& problem);
  bool is_empty() const { return is_empty_; }
  /// The section, with one entry.
  report::Section section(const Answered& who, const std::string& path, const std::string& repro) const;

 private:
  std::vector<std::vector<std::string>> cells_;  ///< [row][column], empty: not compared
  bool is_empty_ = true;
};

}  // namespace kda_check::engine

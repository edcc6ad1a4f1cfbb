// Faults that a gate is to see, each in some places of a problem: a direction d, of which a faulty answer has
// a share, answer = healthy + share d (docs/verdicts.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hypotheses/naming/faults.hpp"
#include "judge/measures/regions.hpp"
#include "judge/spread/twin_test.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::engine {

struct FaultRow {
  std::string_view key, says;
  const hypotheses::Fault* known = nullptr;  ///< what it is a row of, if it is a known one
};
/// In the order of reports: those in cells of the answer, then the known ones.
const std::vector<FaultRow>& fault_rows();

/// A fault in one place.
struct Fault {
  const FaultRow* row;
  std::string place;
  std::optional<std::size_t> head;  ///< none: all of them
  std::vector<bool> rows;           ///< that are wrong
  std::size_t first_column = 0, last_column = 0;
  /// d of the head, [rows][padded_width]; empty: the healthy answer itself.
  std::vector<float> direction = {};

  bool has(std::size_t of_head) const { return !head || *head == of_head; }
};

/// What faults are made on.
struct FaultSite {
  const kda::Problem& problem;
  std::string_view tensor;  ///< o or final_state
  const judge::RowLayout& layout;
  const tensor::Tensor& answer;  ///< healthy
  numeric::DType storage;        ///< that answers are rounded to
  std::size_t places = 3;  ///< of faults that are not everywhere; known ones that are at no token have one
};
/// All faults in all their places, in the order of fault_rows(); places where a fault changes nothing, or
/// gives what is not finite, are left out. Known ones take a run of the readable recurrence each, and are
/// left out where that takes more than a second.
std::vector<Fault> faults_on(const FaultSite& site, int threads);

/// Whether what was found is where the fault is: the same cells; of one that goes on with the recurrence rows
/// of chunks where it does.
bool is_named(const Fault& fault, const judge::Excess& found, const judge::RowLayout& layout);

}  // namespace kda_check::engine

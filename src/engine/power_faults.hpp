// Faults that a gate is to see, each in several places of a problem: a direction d, of which a faulty answer
// has a share, answer = healthy + share d (docs/power.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/measures/regions.hpp"
#include "judge/spread/twin_test.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::engine {

enum class FaultFamily : std::uint8_t {
  scale,
  head,
  chunk,
  last_rows,
  row,
  column,
  tile,
  element,
  state,
  slow_channel,
  missed_decay,
  truncation,
};

struct FaultRow {
  FaultFamily family;
  std::string_view key, says;
  bool has_share = true;  ///< else it is there or not
};
/// In the order of reports.
const std::vector<FaultRow>& fault_rows();

/// A fault in one place.
struct Fault {
  FaultFamily family;
  std::string place;
  std::optional<std::size_t> head;  ///< none: all of them
  std::vector<bool> rows;           ///< that are wrong
  std::size_t first_column = 0, last_column = 0;
  /// d of the head, [rows][padded_width]; empty: the healthy answer itself.
  std::vector<float> direction = {};
  bool truncates = false;  ///< stored towards zero

  bool has(std::size_t of_head) const { return !head || *head == of_head; }
};

/// What faults are made on.
struct FaultSite {
  const kda::Problem& problem;
  std::string_view tensor;  ///< o or final_state
  const judge::RowLayout& layout;
  const tensor::Tensor& answer;  ///< healthy
  numeric::DType storage;        ///< that answers are rounded to
  std::size_t places = 3;        ///< of faults that are not everywhere
};
/// All faults in all their places; places where a fault changes nothing are left out.
std::vector<Fault> faults_on(const FaultSite& site, int threads);

/// The column of a row of a head whose value is nearest to a typical one.
std::size_t typical_column(const judge::RowLayout& layout, const tensor::Tensor& answer, std::size_t row,
                           std::size_t head);

/// Whether what was found is where the fault is: the same cells; of one that goes on with the recurrence rows
/// of chunks where it does.
bool is_named(const Fault& fault, const judge::Excess& found, const judge::RowLayout& layout);

}  // namespace kda_check::engine

// The words and figures that reports have in common, and the rows they are in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/result.hpp"

namespace kda_check::report {

std::string upper(std::string_view text);

/// Counts as integers while they are short, all else in three digits.
std::string short_number(double value);

/// Null for a metric that does not apply to the tensor.
const double* metric(const TensorResult& tensor, std::string_view name);
std::string metric_text(const TensorResult& tensor, std::string_view name);  ///< "-" where it does not apply

/// The dtype of o and, where it is another, the precision of the operands of the products.
std::string precision_text(const CaseResult& item);

/// "oracle", "expected/fla_chunk"; for diff what was expected; empty where nothing was run.
std::string reference_text(const Result& result, const CaseResult& item);

/// "o[b=0 t=3 h=1 v=2] got 0.1 (0x1.9p-4), expected 0.2 (0x1.9p-3)"
std::string point_text(const PointResult& point);

/// "2 failed, 1 inconclusive, 12 passed, 0 skipped; 1 not read"
std::string counts_text(const Result& result);

/// One line of a report: a tensor of a case, or a case that failed or was skipped beside its tensors.
struct Row {
  const CaseResult* item;
  const TensorResult* tensor;  ///< null: the case itself
  compare::Verdict verdict;
  std::string reason;

  bool is_bad() const {
    return verdict == compare::Verdict::fail || verdict == compare::Verdict::inconclusive;
  }
  /// "recurrent fp32 o"
  std::string name() const;
};

/// All rows that share a fixture, in the order of the result.
struct FixtureRows {
  std::string name, path;
  const FixtureResult* fixture;  ///< null when it could not be read to its end
  std::vector<Row> rows;
};

/// "recurrent fp32 o against oracle"
std::string row_and_reference(const Result& result, const Row& row);

std::vector<FixtureRows> rows_by_fixture(const Result& result);

/// The rows that failed or were inconclusive, failures first.
std::vector<Row> bad_rows(const std::vector<FixtureRows>& fixtures);

/// What to say when no row and no error says why the exit code is not 0; else empty.
std::string unexplained_failure(const Result& result);

}  // namespace kda_check::report

// The words and figures that reports have in common, and the rows they are in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/document.hpp"

namespace kda_check::report {

std::string upper(std::string_view text);

/// "1 fixture", "2 fixtures"
std::string counted(std::size_t count, std::string_view noun);

/// Counts as integers while they are short, all else in three digits.
std::string short_number(double value);

/// Columns of numbers stand to the right.
bool is_figure(Show show);

/// A value of a table as text, by its column; sentences joined. `unicode`: of blocks in series.
std::string value_text(const Value& value, Show show, bool unicode = false);

/// Null for a metric that does not apply to the tensor.
const double* metric(const TensorResult& tensor, std::string_view name);
std::string metric_text(const TensorResult& tensor, std::string_view name);  ///< "-" where it does not apply

/// The limit that is closest to being crossed, "rms_ratio 43 %" of it; or "nonfinite 3 > 0"; "-" without any.
/// A star behind it where it is not the program's own.
std::string closest_limit(const TensorResult& tensor);

/// The dtype of o and, where it is another, the precision of the operands of the products.
std::string precision_text(const std::string& dtype, const std::string& compute);
inline std::string precision_text(const CaseResult& item) { return precision_text(item.dtype, item.compute); }

/// "oracle", "fla_chunk, recorded"; for diff what was expected; empty where nothing was run.
std::string reference_text(const Document& document, const CaseResult& item);

/// "o[b=0 t=3 h=1 v=2] got 0.1 (0x1.9p-4), expected 0.2 (0x1.9p-3)"
std::string point_text(const PointResult& point);

/// "1 fixture, 7 comparisons of 14 tensors: 4 passed, 2 failed (in 1 of them a tensor is inconclusive),
/// 1 inconclusive, 0 skipped; 1 error"
std::string counts_text(const Document& document);

/// PASS or FAIL; INTERRUPTED.
std::string_view outcome(const Document& document);

/// Fail or inconclusive.
bool is_bad(Verdict verdict);
/// A case that failed for another reason than its tensors: options that differ.
bool fails_beyond_tensors(const CaseResult& item);

/// One line of a report: a tensor of a case, a case that failed or was skipped beside its tensors, or an
/// entry of a section that has a verdict.
struct Row {
  const CaseResult* item;      ///< null: an entry
  const TensorResult* tensor;  ///< null: the case itself
  Verdict verdict;
  std::string reason;
  std::string entry;  ///< what the entry is called

  bool is_bad() const { return report::is_bad(verdict); }
  /// "recurrent fp32 o"
  std::string name() const;
};

/// Everything about one fixture or regime, in the order of the document; what is about none comes last.
struct ProblemRows {
  std::string name;  ///< the path, where several have one name
  std::string path;
  const ProblemResult* problem;  ///< null when it could not be read to its end
  std::vector<Row> rows;
  std::vector<const Section*> sections;
};
std::vector<ProblemRows> rows_by_problem(const Document& document);

/// "recurrent fp32 o against oracle"
std::string row_and_reference(const Document& document, const Row& row);

/// The rows that failed or were inconclusive, failures first, each with its problem.
std::vector<std::pair<const ProblemRows*, Row>> bad_rows(const std::vector<ProblemRows>& problems);

/// Columns that are shown in a table: no sentences, no data, and those of -v with it.
std::vector<std::size_t> shown_columns(const std::vector<Column>& columns, Detail detail);

/// What an entry says below its table, sentence by sentence.
std::vector<std::string> sentences_of(const Section& section, const Entry& entry);

/// "chunk bf16, o", or what the values say: a name for an entry in lists.
std::string entry_name(const Section& section, const Entry& entry);

}  // namespace kda_check::report

// Workflow commands: GitHub shows them as annotations of the run. It takes ten of a kind from one step.
#include <fmt/format.h>

#include "report/cells.hpp"
#include "report/markup.hpp"
#include "report/stages_writers.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

constexpr std::size_t most_annotations = 10;

/// `file` may be empty.
std::string annotation(std::string_view kind, std::string_view title, std::string_view message,
                       std::string_view file = {}) {
  const std::string place = file.empty() ? std::string() : fmt::format("file={},", command_property(file));
  return fmt::format("::{} {}title={}::{}\n", kind, place, command_property(title), command_message(message));
}

/// Only a file of the checkout can carry an annotation.
std::string annotated_file(const std::string& path) {
  return path.ends_with(".h5") && !path.starts_with("/") && !path.starts_with("..") ? path : std::string();
}

std::string annotation_of(const Result& result, const Row& row) {
  std::string message = row.reason;
  if (row.tensor != nullptr && row.tensor->worst) message += "; worst at " + point_text(*row.tensor->worst);
  return annotation(row.verdict == compare::Verdict::fail ? "error" : "warning",
                    fmt::format("{} {}: {}", upper(compare::name_of(row.verdict)), row.item->fixture,
                                row_and_reference(result, row)),
                    message, annotated_file(row.item->path));
}

}  // namespace

std::string write_github(const Result& result, const WriteOptions&) {
  std::vector<std::string> lines;
  for (const FailedInput& error : result.errors)
    lines.push_back(annotation("error", "kda-check could not go on", error.message));
  for (const Row& row : bad_rows(rows_by_fixture(result))) lines.push_back(annotation_of(result, row));
  for (const StageCase& item : result.stages)
    if (!item.divergence.empty())
      lines.push_back(annotation("notice", fmt::format("stages of {}, {}", answer_text(item), item.fixture),
                                 divergence_text(item), annotated_file(item.path)));
  std::string text;
  for (std::size_t i = 0; i < lines.size() && i < most_annotations; ++i) text += lines[i];
  std::string summary = counts_text(result);
  if (lines.size() > most_annotations)
    summary += fmt::format("; {} more are in the report", lines.size() - most_annotations);
  const std::string failure = unexplained_failure(result);
  if (!failure.empty()) return text + annotation("error", "kda-check", failure + ": " + summary);
  return text + annotation("notice", "kda-check", summary);
}

}  // namespace kda_check::report

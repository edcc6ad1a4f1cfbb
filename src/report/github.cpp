// Workflow commands: GitHub shows them as annotations of the run. It takes ten of a kind from one step.
#include <fmt/format.h>

#include "report/markup.hpp"
#include "report/rows.hpp"
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
  const bool is_file = path.ends_with(".h5") || path.ends_with(".hdf5");
  return is_file && !path.starts_with("/") && !path.starts_with("..") ? path : std::string();
}

std::string annotation_of(const Document& document, const ProblemRows& problem, const Row& row) {
  std::string message = row.reason;
  if (row.tensor != nullptr && row.tensor->worst) message += "; worst at " + point_text(*row.tensor->worst);
  if (row.item != nullptr && !row.item->repro.empty()) message += "; repro: " + row.item->repro;
  return annotation(row.verdict == Verdict::fail ? "error" : "warning",
                    fmt::format("{} {}: {}", upper(judge::name_of(row.verdict)), problem.name,
                                row_and_reference(document, row)),
                    message, annotated_file(problem.path));
}

/// The sentences of a section that has no verdicts, each as a notice.
void add_sentences(std::vector<std::string>& lines, const ProblemRows& problem, const Section& section) {
  for (const Entry& entry : section.entries)
    for (std::size_t i = 0; i < section.columns.size(); ++i) {
      if (section.columns[i].show != Show::sentence || entry.verdict) continue;
      const std::string text = value_text(entry.values[i], Show::sentence);
      if (!text.empty() && text != "-")
        lines.push_back(annotation("notice", fmt::format("{}, {}", entry_name(section, entry), problem.name),
                                   text, annotated_file(problem.path)));
    }
}

}  // namespace

std::string write_github(const Document& document, const WriteOptions&) {
  std::vector<std::string> lines;
  for (const Failure& failure : document.failures)
    lines.push_back(annotation("error", "kda-check could not go on", failure.message));
  const std::vector<ProblemRows> problems = rows_by_problem(document);
  for (const auto& [problem, row] : bad_rows(problems))
    lines.push_back(annotation_of(document, *problem, row));
  for (const ProblemRows& problem : problems)
    for (const Section* const section : problem.sections) add_sentences(lines, problem, *section);
  std::string text;
  for (std::size_t i = 0; i < lines.size() && i < most_annotations; ++i) text += lines[i];
  std::string summary = counts_text(document);
  if (lines.size() > most_annotations)
    summary += fmt::format("; {} more are in the report", lines.size() - most_annotations);
  const std::string failure = unexplained_failure(document);
  if (!failure.empty()) return text + annotation("error", "kda-check", failure + ": " + summary);
  return text + annotation("notice", "kda-check", summary);
}

}  // namespace kda_check::report

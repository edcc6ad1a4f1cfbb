// Markdown for the summary of a GitHub job: the verdict, what did not pass, and all rows folded away. GitHub
// drops a summary of more than 1 MiB, so the table of all rows ends before that.
#include <fmt/format.h>

#include "base/append.hpp"
#include "report/markup.hpp"
#include "report/rows.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

constexpr std::size_t most_bytes = 800'000, most_bad_rows = 200;

constexpr char heading[] =
    "| verdict | fixture | answer | tensor | against | rms_ratio | scaled_ulp | max_ulp | of its limit | "
    "worst at "
    "|\n|---|---|---|---|---|--:|--:|--:|---|---|\n";

/// A mark beside the word, for the eye.
std::string_view mark_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return "✅";
    case Verdict::fail:
      return "❌";
    case Verdict::inconclusive:
      return "❔";
    case Verdict::skipped:
      break;
  }
  return "➖";
}

std::string table_row(const Document& document, const ProblemRows& problem, const Row& row) {
  const TensorResult* const tensor = row.tensor;
  const auto figure = [tensor](std::string_view name) { return tensor ? metric_text(*tensor, name) : "-"; };
  const std::string answer = row.item
                                 ? markdown(row.item->variant) + " " + markdown(precision_text(*row.item))
                                 : markdown(row.entry);
  return fmt::format("| {} {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", mark_of(row.verdict),
                     upper(judge::name_of(row.verdict)), markdown(problem.name), answer,
                     tensor ? markdown(tensor->name) : "-",
                     row.item ? markdown(reference_text(document, *row.item)) : "-", figure("rms_ratio"),
                     figure("scaled_ulp"), figure("max_ulp"), tensor ? markdown(closest_limit(*tensor)) : "-",
                     tensor && tensor->worst ? markdown(tensor->worst->place) : "-");
}

void add_bad_rows(std::string& text, const Document& document,
                  const std::vector<std::pair<const ProblemRows*, Row>>& bad) {
  if (bad.empty()) return;
  text += "\n### What did not pass\n\n";
  text += heading;
  std::string reasons;
  for (std::size_t i = 0; i < bad.size() && i < most_bad_rows; ++i) {
    const auto& [problem, row] = bad[i];
    text += table_row(document, *problem, row);
    append(reasons, "- **{}** {}: {}\n", markdown(problem->name), markdown(row_and_reference(document, row)),
           markdown(row.reason));
    if (row.item != nullptr && !row.item->repro.empty())
      append(reasons, "  <br>repro: {}\n", markdown(row.item->repro));
  }
  text += "\n" + reasons;
  if (bad.size() > most_bad_rows) append(text, "\n{} more rows did not pass.\n", bad.size() - most_bad_rows);
}

void add_all_rows(std::string& text, const Document& document, const std::vector<ProblemRows>& problems) {
  std::size_t rows = 0, left_out = 0;
  std::string table;
  for (const ProblemRows& problem : problems)
    for (const Row& row : problem.rows) {
      const std::string line = table_row(document, problem, row);
      const bool fits = text.size() + table.size() + line.size() < most_bytes;
      ++(fits ? rows : left_out);
      if (fits) table += line;
    }
  if (rows == 0) return;
  append(text, "\n<details>\n<summary>All {} rows</summary>\n\n{}{}\n</details>\n", rows + left_out, heading,
         table);
  if (left_out > 0) append(text, "\n{} rows are left out here.\n", left_out);
}

std::string markdown_table(const std::vector<Column>& columns, const std::vector<std::vector<Value>>& rows) {
  const std::vector<std::size_t> shown = shown_columns(columns, Detail::normal);
  std::string text = "|", rule = "|";
  for (const std::size_t i : shown) {
    append(text, " {} |", markdown(columns[i].title()));
    rule += is_figure(columns[i].show) ? "--:|" : "---|";
  }
  text += "\n" + rule + "\n";
  for (const std::vector<Value>& row : rows) {
    text += "|";
    for (const std::size_t i : shown) {
      const std::string cell = value_text(row[i], columns[i].show, true);
      append(text, " {} |", columns[i].show == Show::along ? cell : markdown(cell));
    }
    text += "\n";
  }
  return text;
}

std::string sentences(const Section& section, const Entry& entry) {
  std::string text;
  for (const std::string& sentence : sentences_of(section, entry)) text += markdown(sentence) + "\n\n";
  return text;
}

std::string section_markdown(const ProblemRows& problem, const Section& section) {
  const std::string about = problem.path.empty() ? std::string() : problem.name + ": ";
  const std::string title = section.title.empty() ? section.key : section.title;
  std::string text = fmt::format("\n<details>\n<summary>{}</summary>\n\n", markdown(about + title));
  if (section.tabular) {
    std::vector<std::vector<Value>> rows;
    for (const Entry& entry : section.entries) rows.push_back(entry.values);
    text += markdown_table(section.columns, rows) + "\n";
    for (const Entry& entry : section.entries) text += sentences(section, entry);
  } else {
    for (const Entry& entry : section.entries) {
      text += "#### " + markdown(entry_name(section, entry)) + "\n\n" + sentences(section, entry);
      for (const Table& table : entry.tables)
        if (!table.is_data && !table.rows.empty() && table.from <= Detail::normal)
          text += markdown_table(table.columns, table.rows) + "\n";
    }
  }
  for (const std::string& note : section.notes) text += markdown(note) + "\n\n";
  return text + "</details>\n";
}

}  // namespace

std::string write_summary(const Document& document, const WriteOptions&) {
  const std::vector<ProblemRows> problems = rows_by_problem(document);
  std::string text = fmt::format("## {} kda-check {}: {}\n\n{}\n", exit_code(document) == 0 ? "✅" : "❌",
                                 markdown(document.command), outcome(document), counts_text(document));
  if (const std::string failure = unexplained_failure(document); !failure.empty())
    append(text, "\n**{}**\n", failure);
  if (!document.failures.empty()) text += "\n### Errors\n\n";
  for (const Failure& failure : document.failures)
    append(text, "- {} (exit code {})\n", markdown(failure.message), failure.exit_code);
  add_bad_rows(text, document, bad_rows(problems));
  std::size_t left_out = 0;
  for (const ProblemRows& problem : problems)
    for (const Section* const section : problem.sections) {
      const std::string table = section_markdown(problem, *section);
      if (text.size() + table.size() < most_bytes)
        text += table;
      else
        ++left_out;
    }
  if (left_out > 0) append(text, "\n{} sections are left out here.\n", left_out);
  add_all_rows(text, document, problems);
  return text;
}

}  // namespace kda_check::report

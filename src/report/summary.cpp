// Markdown for the summary of a GitHub job: the verdict, what did not pass, and all rows folded away. GitHub
// drops a summary of more than 1 MiB, so the table of all rows ends before that.
#include <fmt/format.h>

#include <iterator>

#include "report/cells.hpp"
#include "report/markup.hpp"
#include "report/stages_writers.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

constexpr std::size_t most_bytes = 800'000, most_bad_rows = 200;

constexpr char heading[] =
    "| verdict | fixture | answer | tensor | against | max_ulp | scaled_ulp | rms_ratio | worst at |\n"
    "|---|---|---|---|---|--:|--:|--:|---|\n";

/// A mark beside the word, for the eye.
std::string_view mark_of(compare::Verdict verdict) {
  switch (verdict) {
    case compare::Verdict::pass:
      return "✅";
    case compare::Verdict::fail:
      return "❌";
    case compare::Verdict::inconclusive:
      return "❔";
    case compare::Verdict::skipped:
      break;
  }
  return "➖";
}

std::string table_row(const Result& result, const Row& row) {
  const TensorResult* const tensor = row.tensor;
  const auto figure = [tensor](std::string_view name) { return tensor ? metric_text(*tensor, name) : "-"; };
  return fmt::format("| {} {} | {} | {} {} | {} | {} | {} | {} | {} | {} |\n", mark_of(row.verdict),
                     upper(compare::name_of(row.verdict)), markdown(row.item->fixture),
                     markdown(row.item->variant), markdown(precision_text(*row.item)),
                     tensor ? markdown(tensor->name) : "-", markdown(reference_text(result, *row.item)),
                     figure("max_ulp"), figure("scaled_ulp"), figure("rms_ratio"),
                     tensor && tensor->worst ? markdown(tensor->worst->place) : "-");
}

void add_bad_rows(std::string& text, const Result& result, const std::vector<Row>& bad) {
  if (bad.empty()) return;
  text += "\n### What did not pass\n\n";
  text += heading;
  std::string reasons;
  for (std::size_t i = 0; i < bad.size() && i < most_bad_rows; ++i) {
    text += table_row(result, bad[i]);
    fmt::format_to(std::back_inserter(reasons), "- **{}** {}: {}\n", markdown(bad[i].item->fixture),
                   markdown(row_and_reference(result, bad[i])), markdown(bad[i].reason));
  }
  text += "\n" + reasons;
  if (bad.size() > most_bad_rows)
    fmt::format_to(std::back_inserter(text), "\n{} more rows did not pass.\n", bad.size() - most_bad_rows);
}

void add_all_rows(std::string& text, const Result& result, const std::vector<FixtureRows>& fixtures) {
  std::size_t rows = 0, left_out = 0;
  std::string table;
  for (const FixtureRows& fixture : fixtures)
    for (const Row& row : fixture.rows) {
      const std::string line = table_row(result, row);
      const bool fits = text.size() + table.size() + line.size() < most_bytes;
      ++(fits ? rows : left_out);
      if (fits) table += line;
    }
  if (rows == 0) return;
  fmt::format_to(std::back_inserter(text),
                 "\n<details>\n<summary>All {} rows</summary>\n\n{}{}\n</details>\n", rows + left_out,
                 heading, table);
  if (left_out > 0) fmt::format_to(std::back_inserter(text), "\n{} rows are left out here.\n", left_out);
}

}  // namespace

std::string write_summary(const Result& result, const WriteOptions&) {
  const std::vector<FixtureRows> fixtures = rows_by_fixture(result);
  std::string text =
      fmt::format("## {} kda-check {}: {}\n\n{} ({} {})\n", result.exit_code() == 0 ? "✅" : "❌",
                  markdown(result.command), result.exit_code() == 0 ? "PASS" : "FAIL", counts_text(result),
                  fixtures.size(), fixtures.size() == 1 ? "fixture" : "fixtures");
  if (const std::string failure = unexplained_failure(result); !failure.empty())
    fmt::format_to(std::back_inserter(text), "\n**{}**\n", failure);
  if (!result.errors.empty()) text += "\n### Errors\n\n";
  for (const FailedInput& error : result.errors)
    fmt::format_to(std::back_inserter(text), "- {} (exit code {})\n", markdown(error.message),
                   error.exit_code);
  add_bad_rows(text, result, bad_rows(fixtures));
  std::size_t left_out = 0;
  for (const StageCase& item : result.stages) {
    const std::string table = stages_markdown(item);
    if (text.size() + table.size() < most_bytes)
      text += table;
    else
      ++left_out;
  }
  if (left_out > 0)
    fmt::format_to(std::back_inserter(text), "\nThe stages of {} more are left out here.\n", left_out);
  add_all_rows(text, result, fixtures);
  return text;
}

}  // namespace kda_check::report

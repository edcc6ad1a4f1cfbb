// The table of `grow`: one row for each answer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "report/growth.hpp"
#include "report/sparkline.hpp"

namespace kda_check::report {

namespace {

constexpr std::size_t columns = 11;
using Cells = std::array<std::string, columns>;

bool from_end(const GrowthCase& item) { return item.from == "end"; }

Cells headings(const GrowthCase& item) {
  return {"answer",
          "dtype/compute",
          "trend",
          "slope",
          "r2",
          "first",
          "last",
          "worst",
          "worst head",
          "first over a limit",
          from_end(item) ? "rms_ratio from T back" : "rms_ratio along T"};
}

/// "t=0"; from the end "t=-1" is the last token.
std::string position_text(const GrowthCase& item, std::size_t position) {
  return from_end(item) ? fmt::format("t=-{}", position + 1) : fmt::format("t={}", position);
}

std::string crossing_text(const GrowthCase& item) {
  const GrowthCrossing* const crossing = item.first_crossing();
  if (crossing == nullptr) return "-";
  return fmt::format("{} {} {:.3g}>{:.3g}{}", position_text(item, crossing->position), crossing->metric,
                     crossing->value, crossing->limit, crossing->source == "derived" ? "" : "*");
}

Cells row_of(const GrowthCase& item, bool unicode) {
  std::vector<double> ratios;
  for (const GrowthWindow& window : item.windows) ratios.push_back(window.rms_ratio);
  const auto worst = std::max_element(ratios.begin(), ratios.end()) - ratios.begin();
  const bool fitted = item.fit.windows > 2;
  return {item.answer,
          item.compute == item.dtype ? item.dtype : fmt::format("{}/{}", item.dtype, item.compute),
          item.trend,
          fitted ? fmt::format("{:.2f} +-{:.2f}", item.fit.slope, item.fit.standard_error) : "-",
          fitted ? fmt::format("{:.2f}", item.fit.r2) : "-",
          fmt::format("{:.3g}", ratios.front()),
          fmt::format("{:.3g}", ratios.back()),
          fmt::format("{:.3g} at {}", ratios[static_cast<std::size_t>(worst)],
                      position_text(item, item.windows[static_cast<std::size_t>(worst)].first)),
          fmt::format("h={} {:.3g}", item.worst_head, item.heads[item.worst_head].rms_ratio),
          crossing_text(item),
          sparkline(ratios, unicode)};
}

/// The first row holds the headings. The last column is never padded: bars take more bytes than columns.
void print_rows(std::string& out, const std::vector<Cells>& rows) {
  std::array<std::size_t, columns> widths{};
  for (std::size_t column = 0; column + 1 < columns; ++column)
    for (const Cells& row : rows) widths[column] = std::max(widths[column], row[column].size());
  for (const Cells& cells : rows) {
    std::string text = " ";
    for (std::size_t column = 0; column < columns; ++column)
      fmt::format_to(std::back_inserter(text), " {:<{}} ", cells[column], widths[column]);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text;
    out += '\n';
  }
}

void print_crossings(std::string& out, const GrowthCase& item) {
  for (const GrowthCrossing& crossing : item.crossings)
    if (crossing.crossed)
      fmt::format_to(std::back_inserter(out),
                     "  {} {}: {} is {:.4g} > {:.4g}{} first at token {} of a sequence{}, {}\n", item.answer,
                     item.dtype, crossing.metric, crossing.value, crossing.limit,
                     crossing.source == "derived" ? " (derived)" : "*",
                     from_end(item) ? crossing.position + 1 : crossing.position,
                     from_end(item) ? " from its end" : "", crossing.place);
}

/// "1 window", "2 windows"
std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void print_heading(std::string& out, const GrowthResult& result, const GrowthCase& item) {
  const std::string reference = item.against == "oracle"
                                    ? fmt::format("the oracle ({} recurrence)", result.oracle)
                                    : fmt::format("expected/{}", item.against);
  fmt::format_to(std::back_inserter(out), "\n  {} against {}, {} of {}{}\n", item.tensor, reference,
                 counted(item.windows.size(), "window"), counted(item.window, "token"),
                 from_end(item) ? " counted back from the last, t=-1" : "");
}

/// One tensor counted from one end: a heading, a row for each answer, and where limits are crossed.
void print_table(std::string& out, const GrowthResult& result, const std::vector<const GrowthCase*>& cases,
                 bool unicode) {
  print_heading(out, result, *cases.front());
  std::vector<Cells> rows{headings(*cases.front())};
  std::string details;
  for (const GrowthCase* const item : cases) {
    rows.push_back(row_of(*item, unicode));
    print_crossings(details, *item);
  }
  print_rows(out, rows);
  if (!details.empty()) fmt::format_to(std::back_inserter(out), "\n{}", details);
}

/// Cases of a file, those of one table together, tables in the order of their first case.
std::vector<std::vector<const GrowthCase*>> tables_of(const GrowthResult& result, const std::string& path) {
  std::vector<std::vector<const GrowthCase*>> tables;
  for (const GrowthCase& item : result.cases) {
    if (item.path != path) continue;
    const auto mine = std::find_if(tables.begin(), tables.end(), [&](const auto& table) {
      return table.front()->tensor == item.tensor && table.front()->from == item.from;
    });
    if (mine == tables.end()) {
      tables.push_back({&item});
    } else {
      mine->push_back(&item);
    }
  }
  return tables;
}

bool overridden(const GrowthCase& item) {
  return std::any_of(item.crossings.begin(), item.crossings.end(), [](const GrowthCrossing& crossing) {
    return crossing.crossed && crossing.source != "derived";
  });
}

/// An answer may have a row in several tables.
std::size_t answers(const GrowthResult& result) {
  std::size_t most = 0;
  for (const FixtureResult& fixture : result.fixtures) {
    std::size_t here = 0;
    for (const auto& table : tables_of(result, fixture.path)) here = std::max(here, table.size());
    most += here;
  }
  return most;
}

}  // namespace

const GrowthCrossing* GrowthCase::first_crossing() const {
  const GrowthCrossing* first = nullptr;
  for (const GrowthCrossing& crossing : crossings)
    if (crossing.crossed && (first == nullptr || crossing.position < first->position)) first = &crossing;
  return first;
}

int GrowthResult::exit_code() const {
  int code = cases.empty() || std::any_of(cases.begin(), cases.end(), overridden) ? 1 : 0;
  for (const FailedInput& error : errors) code = std::max(code, error.exit_code);
  return code;
}

std::string write_growth_text(const GrowthResult& result, const WriteOptions& options) {
  std::string out;
  for (const FixtureResult& fixture : result.fixtures) {
    fmt::format_to(std::back_inserter(out), "{}  {}  {}\n", fixture.name, fixture.shape, fixture.options);
    for (const auto& table : tables_of(result, fixture.path))
      print_table(out, result, table, options.unicode);
    for (const std::string& note : fixture.notes)
      fmt::format_to(std::back_inserter(out), "  note: {}\n", note);
    out += '\n';
  }
  if (std::any_of(result.cases.begin(), result.cases.end(), overridden))
    out += "* limit from the command line\n";
  fmt::format_to(std::back_inserter(out), "{}, {}", counted(result.fixtures.size(), "fixture"),
                 counted(answers(result), "answer"));
  if (!result.errors.empty()) fmt::format_to(std::back_inserter(out), "; {} not read", result.errors.size());
  return out + "\n";
}

}  // namespace kda_check::report

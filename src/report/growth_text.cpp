// The table of `grow`: one row for each answer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "report/growth.hpp"
#include "report/sparkline.hpp"

namespace kda_check::report {

namespace {

constexpr std::array<const char*, 11> headings = {"answer",
                                                  "dtype/compute",
                                                  "trend",
                                                  "slope",
                                                  "r2",
                                                  "first",
                                                  "last",
                                                  "worst",
                                                  "worst head",
                                                  "first over a limit",
                                                  "rms_ratio along T"};
using Cells = std::array<std::string, headings.size()>;

std::string crossing_text(const GrowthCase& item) {
  const GrowthCrossing* const crossing = item.first_crossing();
  if (crossing == nullptr) return "-";
  return fmt::format("t={} {} {:.3g}>{:.3g}{}", crossing->position, crossing->metric, crossing->value,
                     crossing->limit, crossing->source == "derived" ? "" : "*");
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
          fmt::format("{:.3g} at t={}", ratios[static_cast<std::size_t>(worst)],
                      item.windows[static_cast<std::size_t>(worst)].first),
          fmt::format("h={} {:.3g}", item.worst_head, item.heads[item.worst_head].rms_ratio),
          crossing_text(item),
          sparkline(ratios, unicode)};
}

/// The last column is never padded: bars take more bytes than columns.
void print_rows(std::string& out, const std::vector<Cells>& rows) {
  std::array<std::size_t, headings.size()> widths{};
  for (std::size_t column = 0; column + 1 < headings.size(); ++column) {
    widths[column] = std::string_view(headings[column]).size();
    for (const Cells& row : rows) widths[column] = std::max(widths[column], row[column].size());
  }
  const auto line = [&](const auto& cells) {
    std::string text = " ";
    for (std::size_t column = 0; column < headings.size(); ++column)
      fmt::format_to(std::back_inserter(text), " {:<{}} ", cells[column], widths[column]);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text;
    out += '\n';
  };
  line(headings);
  for (const Cells& row : rows) line(row);
}

void print_crossings(std::string& out, const GrowthCase& item) {
  for (const GrowthCrossing& crossing : item.crossings)
    if (crossing.crossed)
      fmt::format_to(std::back_inserter(out),
                     "  {} {}: {} is {:.4g} > {:.4g}{} first at token {} of a sequence, {}\n", item.answer,
                     item.dtype, crossing.metric, crossing.value, crossing.limit,
                     crossing.source == "derived" ? " (derived)" : "*", crossing.position, crossing.place);
}

/// "1 window", "2 windows"
std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void print_heading(std::string& out, const GrowthResult& result, const GrowthCase& item) {
  const std::string reference = item.against == "oracle"
                                    ? fmt::format("the oracle ({} recurrence)", result.oracle)
                                    : fmt::format("expected/{}", item.against);
  fmt::format_to(std::back_inserter(out), "\n  {} against {}, {} of {}\n", result.tensor, reference,
                 counted(item.windows.size(), "window"), counted(item.window, "token"));
}

}  // namespace

const GrowthCrossing* GrowthCase::first_crossing() const {
  const GrowthCrossing* first = nullptr;
  for (const GrowthCrossing& crossing : crossings)
    if (crossing.crossed && (first == nullptr || crossing.position < first->position)) first = &crossing;
  return first;
}

int GrowthResult::exit_code() const {
  int code = cases.empty() ? 1 : 0;
  for (const GrowthCase& item : cases)
    for (const GrowthCrossing& crossing : item.crossings)
      if (crossing.crossed && crossing.source != "derived") code = 1;
  for (const FailedInput& error : errors) code = std::max(code, error.exit_code);
  return code;
}

std::string write_growth_text(const GrowthResult& result, const WriteOptions& options) {
  std::string out;
  bool overridden = false;
  for (const FixtureResult& fixture : result.fixtures) {
    fmt::format_to(std::back_inserter(out), "{}  {}  {}\n", fixture.name, fixture.shape, fixture.options);
    std::vector<Cells> rows;
    std::string details;
    for (const GrowthCase& item : result.cases) {
      if (item.path != fixture.path) continue;
      if (rows.empty()) print_heading(out, result, item);
      rows.push_back(row_of(item, options.unicode));
      print_crossings(details, item);
      for (const GrowthCrossing& crossing : item.crossings)
        overridden = overridden || (crossing.crossed && crossing.source != "derived");
    }
    if (!rows.empty()) print_rows(out, rows);
    if (!details.empty()) fmt::format_to(std::back_inserter(out), "\n{}", details);
    for (const std::string& note : fixture.notes)
      fmt::format_to(std::back_inserter(out), "  note: {}\n", note);
    out += '\n';
  }
  if (overridden) out += "* limit from the command line\n";
  fmt::format_to(std::back_inserter(out), "{}, {}", counted(result.fixtures.size(), "fixture"),
                 counted(result.cases.size(), "answer"));
  if (!result.errors.empty()) fmt::format_to(std::back_inserter(out), "; {} not read", result.errors.size());
  return out + "\n";
}

}  // namespace kda_check::report

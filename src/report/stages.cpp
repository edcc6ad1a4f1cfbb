// The stages of a run, as text, as JSON (docs/json.md) and as parts of the page and the summary.
#include "report/stages.hpp"

#include <fmt/format.h>

#include <iterator>
#include <vector>

#include "report/json_values.hpp"
#include "report/markup.hpp"
#include "report/stages_writers.hpp"
#include "report/table.hpp"

namespace kda_check::report {

namespace {

std::string number(double value) { return fmt::format("{:.3g}", value); }
std::string number(const std::optional<double>& value) { return value ? number(*value) : "-"; }

std::string precision_text(const StageCase& item) {
  return item.compute == item.dtype ? item.dtype : item.dtype + "/" + item.compute;
}

constexpr const char* columns[] = {"stage",     "dtype",         "rms_ratio",      "scaled_ulp",
                                   "limit",     "own rms_ratio", "own scaled_ulp", "cancelled bits",
                                   "nonfinite", "worst at"};

std::vector<std::string> cells(const StageRowResult& row) {
  const bool compared = row.compared > 0;
  return {row.name,
          row.dtype,
          compared ? number(row.rms_ratio) : "-",
          compared ? number(row.scaled_ulp) : "-",
          number(row.limit),
          number(row.own_rms_ratio),
          number(row.own_scaled_ulp),
          fmt::format("{:.1f}", row.cancelled_bits),
          fmt::format("{}", row.nonfinite),
          row.worst};
}

std::string stage_table(const StageCase& item) {
  Table table({std::begin(columns), std::end(columns)}, 2);
  for (const StageRowResult& row : item.rows) table.add(cells(row));
  return table.text("  ");
}

}  // namespace

std::string answer_text(const StageCase& item) {
  return fmt::format("{} {}{}", item.answer, precision_text(item), item.recorded ? ", recorded" : "");
}

std::string divergence_text(const StageCase& item) {
  return item.divergence.empty() ? "no stage leaves the truth by more than its limit"
                                 : "leaves the truth first at " + item.divergence;
}

std::string stages_html(const StageCase& item) {
  std::string out =
      fmt::format("<h2>Stages of {}</h2>\n<p class=\"soft\">{}</p>\n<p>{}</p>\n", escaped(answer_text(item)),
                  escaped(item.fixture), escaped(divergence_text(item)));
  for (const std::string& line : item.disagreements)
    fmt::format_to(std::back_inserter(out), "<p>with {}</p>\n", escaped(line));
  out += "<div class=\"scroll\"><table class=\"stages\"><thead><tr>";
  for (const char* const name : columns) fmt::format_to(std::back_inserter(out), "<th>{}</th>", name);
  out += "</tr></thead>\n<tbody>\n";
  for (const StageRowResult& row : item.rows) {
    out += "<tr>";
    for (const std::string& cell : cells(row))
      fmt::format_to(std::back_inserter(out), "<td>{}</td>", escaped(cell));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string stages_markdown(const StageCase& item) {
  std::string out = fmt::format("\n### Stages of {}, {}\n\n{}\n\n|", markdown(answer_text(item)),
                                markdown(item.fixture), markdown(divergence_text(item)));
  std::string rule = "\n|";
  for (const char* const name : columns) {
    fmt::format_to(std::back_inserter(out), " {} |", name);
    rule += "---|";
  }
  out += rule;
  for (const StageRowResult& row : item.rows) {
    out += "\n|";
    for (const std::string& cell : cells(row))
      fmt::format_to(std::back_inserter(out), " {} |", markdown(cell));
  }
  out += "\n";
  for (const std::string& line : item.disagreements)
    fmt::format_to(std::back_inserter(out), "\n- with {}", markdown(line));
  return out + (item.disagreements.empty() ? "" : "\n");
}

std::string stages_text(const StageCase& item) {
  std::string out = fmt::format("\nstages of {}, {} {}{}\n", item.answer, item.fixture, precision_text(item),
                                item.recorded ? ", recorded" : "");
  out += stage_table(item);
  fmt::format_to(std::back_inserter(out), "  {}\n", divergence_text(item));
  for (const std::string& line : item.disagreements) out += "  with " + line + "\n";
  return out;
}

Json stages_json(const StageCase& item) {
  Json rows = Json::array();
  for (const StageRowResult& row : item.rows) {
    Json entry = {{"name", row.name},
                  {"dtype", row.dtype},
                  {"rms_ratio", json_number(row.rms_ratio)},
                  {"scaled_ulp", json_number(row.scaled_ulp)},
                  {"max_ulp", json_number(row.max_ulp)},
                  {"compared", row.compared},
                  {"nonfinite", row.nonfinite},
                  {"limit", json_number(row.limit)},
                  {"cancelled_bits", json_number(row.cancelled_bits)},
                  {"worst", row.worst}};
    if (row.own_rms_ratio) entry["own_rms_ratio"] = json_number(*row.own_rms_ratio);
    if (row.own_scaled_ulp) entry["own_scaled_ulp"] = json_number(*row.own_scaled_ulp);
    rows.push_back(entry);
  }
  return {{"fixture", item.fixture},       {"path", item.path},
          {"answer", item.answer},         {"recorded", item.recorded},
          {"dtype", item.dtype},           {"compute", item.compute},
          {"arithmetic", item.arithmetic}, {"stages", rows},
          {"divergence", item.divergence}, {"disagreements", item.disagreements}};
}

}  // namespace kda_check::report

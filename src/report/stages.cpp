// The stages of a run, as text and as JSON (docs/json.md).
#include "report/stages.hpp"

#include <fmt/format.h>

#include <iterator>

#include "report/json_values.hpp"
#include "report/stages_writers.hpp"
#include "report/table.hpp"

namespace kda_check::report {

namespace {

std::string number(double value) { return fmt::format("{:.3g}", value); }
std::string number(const std::optional<double>& value) { return value ? number(*value) : "-"; }

std::string stage_table(const StageCase& item) {
  Table table({"stage", "dtype", "rms_ratio", "scaled_ulp", "limit", "own rms_ratio", "own scaled_ulp",
               "cancelled bits", "nonfinite", "worst at"},
              2);
  for (const StageRowResult& row : item.rows)
    table.add({row.name, row.dtype, row.compared > 0 ? number(row.rms_ratio) : "-",
               row.compared > 0 ? number(row.scaled_ulp) : "-", number(row.limit), number(row.own_rms_ratio),
               number(row.own_scaled_ulp), fmt::format("{:.1f}", row.cancelled_bits),
               fmt::format("{}", row.nonfinite), row.worst});
  return table.text("  ");
}

}  // namespace

std::string stages_text(const StageCase& item) {
  std::string out = fmt::format("\nstages of {}, {} {}{}\n", item.answer, item.fixture,
                                item.compute == item.dtype ? item.dtype : item.dtype + "/" + item.compute,
                                item.recorded ? ", recorded" : "");
  out += stage_table(item);
  if (item.divergence.empty()) {
    out += "  no stage leaves the truth by more than its limit\n";
  } else {
    fmt::format_to(std::back_inserter(out), "  leaves the truth first at {}\n", item.divergence);
  }
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

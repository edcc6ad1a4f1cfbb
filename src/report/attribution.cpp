// The reports of `attribute` (docs/attribution.md, docs/json.md).
#include "report/attribution.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "report/json_values.hpp"
#include "report/table.hpp"

namespace kda_check::report {

namespace {

std::string ratio(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.3g}", value); }
/// Rounded first, so that nothing prints as -0.0.
std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", std::round(1000 * share) / 10 + 0.0) : "-";
}

std::string attribution_text(const Attribution& item) {
  std::string out = fmt::format("\n  {} {}, {}: rms_ratio {} against the oracle\n", item.variant,
                                item.compute == item.dtype ? item.dtype : item.dtype + "/" + item.compute,
                                item.tensor, ratio(item.full));
  Table table({"axis", "as computed", "only this", "all but this", "share"}, 2);
  for (const AxisShare& axis : item.axes)
    table.add({axis.axis, axis.value, ratio(axis.only), ratio(axis.without), percent(axis.share)});
  table.add({"(none: ideal)", "", ratio(item.ideal), "", percent(item.ideal_share)});
  table.add({"interaction", "", "", "", percent(item.interaction)});
  out += table.text("    ");
  if (!item.note.empty()) fmt::format_to(std::back_inserter(out), "    {}\n", item.note);
  if (item.stages.empty()) return out;
  Table stages({"stage", "own error", "o with it exact", "share"});
  for (const StageShare& stage : item.stages)
    stages.add({stage.stage, ratio(stage.own), ratio(stage.given), percent(stage.share)});
  return out + stages.text("    ");
}

std::string ladder_text(const Ladder& item) {
  std::string out = fmt::format("\n  from {} to {}, {}\n", item.from, item.to, item.tensor);
  Table table({"step", "rms_ratio left", "elements that differ", "share"});
  for (const Rung& rung : item.rungs)
    table.add({rung.change, ratio(rung.remaining), fmt::format("{} of {}", rung.differing, item.elements),
               percent(rung.share)});
  return out + table.text("    ");
}

}  // namespace

std::string write_attribution_text(const AttributionResult& result) {
  std::string out;
  for (const FixtureResult& fixture : result.fixtures) {
    fmt::format_to(std::back_inserter(out), "{}  {}  {}\n", fixture.name, fixture.shape, fixture.options);
    for (const Attribution& item : result.attributions)
      if (item.path == fixture.path) out += attribution_text(item);
    for (const Ladder& item : result.ladders)
      if (item.path == fixture.path) out += ladder_text(item);
    for (const std::string& note : fixture.notes)
      fmt::format_to(std::back_inserter(out), "  note: {}\n", note);
    out += '\n';
  }
  return out;
}

std::string write_attribution_json(const AttributionResult& result) {
  Json attributions = Json::array(), ladders = Json::array();
  for (const Attribution& item : result.attributions) {
    Json axes = Json::array(), stages = Json::array();
    for (const AxisShare& axis : item.axes)
      axes.push_back({{"axis", axis.axis},
                      {"value", axis.value},
                      {"only", json_number(axis.only)},
                      {"without", json_number(axis.without)},
                      {"share", json_number(axis.share)}});
    for (const StageShare& stage : item.stages)
      stages.push_back({{"stage", stage.stage},
                        {"own", json_number(stage.own)},
                        {"given", json_number(stage.given)},
                        {"share", json_number(stage.share)}});
    attributions.push_back({{"fixture", item.fixture},
                            {"path", item.path},
                            {"variant", item.variant},
                            {"dtype", item.dtype},
                            {"compute", item.compute},
                            {"arithmetic", item.arithmetic},
                            {"pass", item.pass},
                            {"tensor", item.tensor},
                            {"rms_ratio", json_number(item.full)},
                            {"ideal", json_number(item.ideal)},
                            {"ideal_share", json_number(item.ideal_share)},
                            {"interaction", json_number(item.interaction)},
                            {"axes", axes},
                            {"stages", stages},
                            {"note", item.note}});
  }
  for (const Ladder& item : result.ladders) {
    Json rungs = Json::array();
    for (const Rung& rung : item.rungs)
      rungs.push_back({{"change", rung.change},
                       {"remaining", json_number(rung.remaining)},
                       {"differing", rung.differing},
                       {"share", json_number(rung.share)}});
    ladders.push_back({{"fixture", item.fixture},
                       {"path", item.path},
                       {"from", item.from},
                       {"to", item.to},
                       {"pass", item.pass},
                       {"tensor", item.tensor},
                       {"elements", item.elements},
                       {"rungs", rungs}});
  }
  return json_text({{"schema_version", 1},
                    {"tool", json_tool()},
                    {"request", {{"command", "attribute"}, {"argv", result.argv}}},
                    {"fixtures", json_fixtures(result.fixtures)},
                    {"attributions", attributions},
                    {"ladders", ladders},
                    {"errors", json_errors(result.errors)},
                    {"summary", {{"exit_code", result.exit_code()}}}});
}

}  // namespace kda_check::report

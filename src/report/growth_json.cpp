// The JSON of `grow` (docs/json.md).
#include "report/growth.hpp"
#include "report/json_values.hpp"

namespace kda_check::report {

namespace {

Json fit(const GrowthFit& item) {
  return {{"windows", item.windows},
          {"slope", json_number(item.slope)},
          {"standard_error", json_number(item.standard_error)},
          {"r2", json_number(item.r2)}};
}

Json windows(const GrowthCase& item) {
  Json first = Json::array(), last = Json::array(), rms = Json::array(), ulp = Json::array(),
       absolute = Json::array();
  for (const GrowthWindow& window : item.windows) {
    first.push_back(window.first);
    last.push_back(window.last);
    rms.push_back(json_number(window.rms_ratio));
    ulp.push_back(json_number(window.scaled_ulp));
    absolute.push_back(json_number(window.max_abs));
  }
  Json arrays = {{"first", first}, {"last", last}, {"rms_ratio", rms}};
  if (item.has_magnitude) arrays["scaled_ulp"] = ulp;
  arrays["max_abs"] = absolute;
  return arrays;
}

Json heads(const GrowthCase& item) {
  Json list = Json::array();
  for (std::size_t head = 0; head < item.heads.size(); ++head) {
    Json ratios = Json::array();
    for (const double ratio : item.heads[head].window_rms_ratio) ratios.push_back(json_number(ratio));
    list.push_back({{"head", head},
                    {"rms_ratio", json_number(item.heads[head].rms_ratio)},
                    {"fit", fit(item.heads[head].fit)},
                    {"window_rms_ratio", ratios}});
  }
  return list;
}

Json crossings(const GrowthCase& item) {
  Json list = Json::array();
  for (const GrowthCrossing& crossing : item.crossings) {
    Json entry = {{"metric", crossing.metric},
                  {"limit", json_number(crossing.limit)},
                  {"source", crossing.source},
                  {"crossed", crossing.crossed}};
    if (crossing.crossed) {
      entry["position"] = crossing.position;
      entry["value"] = json_number(crossing.value);
      entry["place"] = crossing.place;
    }
    list.push_back(entry);
  }
  return list;
}

Json one_case(const GrowthCase& item) {
  return {{"fixture", item.fixture},  {"path", item.path},
          {"answer", item.answer},    {"recorded", item.recorded},
          {"dtype", item.dtype},      {"compute", item.compute},
          {"against", item.against},  {"arithmetic", item.arithmetic},
          {"tensor", item.tensor},    {"from", item.from},
          {"window", item.window},    {"trend", item.trend},
          {"fit", fit(item.fit)},     {"windows", windows(item)},
          {"heads", heads(item)},     {"worst_head", item.worst_head},
          {"limits", crossings(item)}};
}

}  // namespace

std::string write_growth_json(const GrowthResult& result) {
  Json cases = Json::array();
  for (const GrowthCase& item : result.cases) cases.push_back(one_case(item));
  return json_text({{"schema_version", 1},
                    {"tool", json_tool()},
                    {"request",
                     {{"command", "grow"},
                      {"argv", result.argv},
                      {"oracle", result.oracle},
                      {"tensor", result.tensors.front()},
                      {"tensors", result.tensors}}},
                    {"fixtures", json_fixtures(result.fixtures)},
                    {"growth", cases},
                    {"errors", json_errors(result.errors)},
                    {"summary", {{"exit_code", result.exit_code()}}}});
}

}  // namespace kda_check::report

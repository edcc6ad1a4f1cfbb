// The document scripts rely on (docs/json.md). Additions keep schema_version 1.
#include "report/json_values.hpp"
#include "report/stages_writers.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

Json point(const PointResult& item) {
  return {{"index", item.index},
          {"place", item.place},
          {"got", json_number(item.got)},
          {"expected", json_number(item.expected)},
          {"magnitude", json_number(item.magnitude)},
          {"got_hex", item.got_hex},
          {"expected_hex", item.expected_hex}};
}

Json tensor(const TensorResult& item) {
  Json metrics = Json::object(), limits = Json::array(), points = Json::array();
  for (const auto& [name, value] : item.metrics) metrics[name] = json_number(value);
  for (const compare::Limit& limit : item.limits)
    limits.push_back(
        {{"metric", limit.metric}, {"value", json_number(limit.value)}, {"source", limit.source}});
  for (const PointResult& worst : item.points) points.push_back(point(worst));
  Json result = {{"name", item.name},     {"shape", item.shape},
                 {"dtype", item.dtype},   {"verdict", compare::name_of(item.verdict)},
                 {"reason", item.reason}, {"metrics", metrics},
                 {"limits", limits},      {"worst", item.worst ? point(*item.worst) : Json(nullptr)},
                 {"worst_points", points}};
  if (!item.worst_window.empty()) result["worst_window"] = item.worst_window;
  if (!item.worst_head.empty()) result["worst_head"] = item.worst_head;
  return result;
}

Json probe(const ProbeResult& item) {
  Json matches = Json::array(), nearest = nullptr;
  const auto entry = [](const ProbeMatch& match) {
    return Json{{"convention", match.convention},
                {"meaning", match.meaning},
                {"tensor", match.tensor},
                {"rms_ratio_as_given", json_number(match.rms_ratio_before)},
                {"rms_ratio_as_misread", json_number(match.rms_ratio_after)}};
  };
  for (const ProbeMatch& match : item.matches) matches.push_back(entry(match));
  if (item.nearest) nearest = entry(*item.nearest);
  return {
      {"matches", matches}, {"nearest", nearest}, {"conventions", item.conventions}, {"scope", item.scope}};
}

Json one_case(const CaseResult& item) {
  Json tensors = Json::array();
  for (const TensorResult& result : item.tensors) tensors.push_back(tensor(result));
  Json result = {{"fixture", item.fixture},
                 {"path", item.path},
                 {"variant", item.variant},
                 {"recorded", item.recorded},
                 {"dtype", item.dtype},
                 {"device", item.device},
                 {"pass", item.pass},
                 {"arithmetic", item.arithmetic},
                 {"compute", item.compute},
                 {"against", item.against},
                 {"verdict", compare::name_of(item.verdict)},
                 {"reason", item.reason},
                 {"tensors", tensors}};
  if (!item.trials.empty()) result["trials"] = item.trials;
  if (item.probe) result["probe"] = probe(*item.probe);
  return result;
}

}  // namespace

std::string write_json(const Result& result, const WriteOptions&) {
  Json cases = Json::array();
  for (const CaseResult& item : result.cases) cases.push_back(one_case(item));
  Json document = {
      {"schema_version", 1},
      {"tool", json_tool()},
      {"request", {{"command", result.command}, {"argv", result.argv}, {"oracle", result.oracle}}},
      {"fixtures", json_fixtures(result.fixtures)},
      {"cases", cases},
      {"errors", json_errors(result.errors)},
      {"summary",
       {{"passed", result.count(compare::Verdict::pass)},
        {"failed", result.count(compare::Verdict::fail)},
        {"inconclusive", result.count(compare::Verdict::inconclusive)},
        {"skipped", result.count(compare::Verdict::skipped)},
        {"errors", result.errors.size()},
        {"exit_code", result.exit_code()}}}};
  if (!result.nothing_to_do.empty()) document["nothing_to_do"] = result.nothing_to_do;
  if (!result.stages.empty()) {
    document["stages"] = Json::array();
    for (const StageCase& item : result.stages) document["stages"].push_back(stages_json(item));
  }
  return json_text(document);
}

}  // namespace kda_check::report

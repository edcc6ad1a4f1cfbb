// The document scripts rely on (docs/json.md). Additions keep schema_version 1.
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/version.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

using Json = nlohmann::ordered_json;

/// A number that is not finite is a string: JSON has no word for it.
Json number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

Json point(const PointResult& item) {
  return {{"index", item.index},
          {"place", item.place},
          {"got", number(item.got)},
          {"expected", number(item.expected)},
          {"magnitude", number(item.magnitude)},
          {"got_hex", item.got_hex},
          {"expected_hex", item.expected_hex}};
}

Json tensor(const TensorResult& item) {
  Json metrics = Json::object(), limits = Json::array(), points = Json::array();
  for (const auto& [name, value] : item.metrics) metrics[name] = number(value);
  for (const compare::Limit& limit : item.limits)
    limits.push_back({{"metric", limit.metric}, {"value", number(limit.value)}, {"source", limit.source}});
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

Json one_case(const CaseResult& item) {
  Json tensors = Json::array();
  for (const TensorResult& result : item.tensors) tensors.push_back(tensor(result));
  return {{"fixture", item.fixture},
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
}

}  // namespace

std::string write_json(const Result& result, const WriteOptions&) {
  Json fixtures = Json::array(), cases = Json::array(), errors = Json::array();
  for (const FixtureResult& item : result.fixtures)
    fixtures.push_back({{"name", item.name},
                        {"path", item.path},
                        {"shape", item.shape},
                        {"options", item.options},
                        {"notes", item.notes}});
  for (const CaseResult& item : result.cases) cases.push_back(one_case(item));
  for (const FailedInput& item : result.errors)
    errors.push_back({{"message", item.message}, {"exit_code", item.exit_code}});
  const Json document = {
      {"schema_version", 1},
      {"tool", {{"name", "kda-check"}, {"version", version}}},
      {"request", {{"command", result.command}, {"argv", result.argv}, {"oracle", result.oracle}}},
      {"fixtures", fixtures},
      {"cases", cases},
      {"errors", errors},
      {"summary",
       {{"passed", result.count(compare::Verdict::pass)},
        {"failed", result.count(compare::Verdict::fail)},
        {"inconclusive", result.count(compare::Verdict::inconclusive)},
        {"skipped", result.count(compare::Verdict::skipped)},
        {"errors", result.errors.size()},
        {"exit_code", result.exit_code()}}}};
  // Strings come from files: bytes that are no UTF-8 are replaced rather than refused.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kda_check::report

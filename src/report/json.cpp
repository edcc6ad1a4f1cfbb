// The document scripts rely on (docs/ci.md, docs/report.schema.json). Additions keep schema_version 2.
#include "base/version.hpp"
#include "report/json_values.hpp"
#include "report/rows.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

namespace {

Json point(const PointResult& item) {
  Json result = {{"index", item.index},
                 {"place", item.place},
                 {"got", json_number(item.got)},
                 {"expected", json_number(item.expected)},
                 {"magnitude", json_number(item.magnitude)},
                 {"got_hex", item.got_hex},
                 {"expected_hex", item.expected_hex}};
  if (item.has_distance()) result["off_by"] = json_number(item.off_by);
  return result;
}

Json twins(const judge::TwinJudgement& item) {
  Json result{
      {"count", item.twins}, {"ratio", json_number(item.ratio)}, {"energy", json_number(item.energy)}};
  if (!item.place.empty())
    result.update({{"place", item.place},
                   {"place_energy", json_number(item.worst.energy)},
                   {"place_slope", json_number(item.worst.slope)},
                   {"sigmas", json_number(item.worst.sigmas)}});
  return result;
}

Json tensor(const TensorResult& item) {
  Json metrics = Json::object(), limits = Json::array(), points = Json::array();
  for (const auto& [name, value] : item.metrics) metrics[name] = json_number(value);
  for (const judge::Limit& limit : item.limits)
    limits.push_back(
        {{"metric", limit.metric}, {"value", json_number(limit.value)}, {"source", limit.source}});
  for (const PointResult& worst : item.points) points.push_back(point(worst));
  Json result = {{"name", item.name},     {"shape", item.shape},
                 {"dtype", item.dtype},   {"verdict", judge::name_of(item.verdict)},
                 {"reason", item.reason}, {"metrics", metrics},
                 {"limits", limits},      {"worst", item.worst ? point(*item.worst) : Json(nullptr)},
                 {"worst_points", points}};
  if (!item.worst_window.empty()) result["worst_window"] = item.worst_window;
  if (!item.worst_head.empty()) result["worst_head"] = item.worst_head;
  if (item.floor) result["floor"] = json_number(*item.floor);
  if (item.twins) result["twins"] = twins(*item.twins);
  if (item.reference_fails) result["reference_fails"] = true;
  return result;
}

Json one_case(const CaseResult& item) {
  Json tensors = Json::array();
  for (const TensorResult& result : item.tensors) tensors.push_back(tensor(result));
  Json result = {{"fixture", item.fixture},
                 {"path", item.path},
                 {"variant", item.variant},
                 {"recorded", item.recorded()},
                 {"dtype", item.dtype},
                 {"device", item.device},
                 {"pass", item.pass},
                 {"arithmetic", item.arithmetic},
                 {"compute", item.compute},
                 {"against", item.against},
                 {"verdict", judge::name_of(item.verdict)},
                 {"reason", item.reason},
                 {"tensors", tensors}};
  if (item.number > 0) result["number"] = item.number;
  if (!item.place.empty()) result["place"] = item.place;
  if (item.role == Role::external) result["external"] = true;
  if (item.compute_assumed) result["compute_assumed"] = true;
  if (!item.oracle.empty()) result["oracle"] = item.oracle;
  if (item.oracle_error) result["oracle_error"] = json_number(*item.oracle_error);
  if (!item.oracle_device.empty()) result["oracle_device"] = item.oracle_device;
  if (!item.trials.empty()) result["trials"] = item.trials;
  if (!item.repro.empty()) result["repro"] = item.repro;
  return result;
}

Json value_json(const Value& value) {
  return std::visit(
      [](const auto& held) -> Json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) return nullptr;
        if constexpr (std::is_same_v<Held, double>) return json_number(held);
        if constexpr (std::is_same_v<Held, std::vector<double>>) {
          Json list = Json::array();
          for (const double number : held) list.push_back(json_number(number));
          return list;
        }
        if constexpr (std::is_same_v<Held, judge::TwinJudgement>) return twins(held);
        if constexpr (!std::is_same_v<Held, double> && !std::is_same_v<Held, std::vector<double>> &&
                      !std::is_same_v<Held, std::monostate> && !std::is_same_v<Held, judge::TwinJudgement>)
          return held;
      },
      value);
}

Json table_json(const Table& table) {
  Json result = table.by_column ? Json::object() : Json::array();
  if (table.by_column)
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      Json& column = result[table.columns[i].key] = Json::array();
      for (const std::vector<Value>& row : table.rows) column.push_back(value_json(row[i]));
    }
  else
    for (const std::vector<Value>& row : table.rows) {
      Json entry = Json::object();
      for (std::size_t i = 0; i < row.size(); ++i) entry[table.columns[i].key] = value_json(row[i]);
      result.push_back(std::move(entry));
    }
  return result;
}

Json entry_json(const Document& document, const Section& section, const Entry& entry) {
  Json result = Json::object();
  for (const ProblemResult& problem : document.problems)
    if (!section.path.empty() && problem.path == section.path) {
      result["fixture"] = problem.name;
      result["path"] = problem.path;
    }
  for (std::size_t i = 0; i < section.columns.size(); ++i)
    if (!section.columns[i].key.empty()) result[section.columns[i].key] = value_json(entry.values[i]);
  if (entry.verdict) {
    result["verdict"] = judge::name_of(*entry.verdict);
    result["reason"] = entry.reason;
  }
  for (const Table& table : entry.tables) result[table.key] = table_json(table);
  return result;
}

Json fixtures(const Document& document) {
  Json list = Json::array();
  for (const ProblemResult& item : document.problems)
    list.push_back({{"name", item.name},
                    {"path", item.path},
                    {"shape", item.shape},
                    {"options", item.options},
                    {"notes", item.notes}});
  return list;
}

Json failures(const Document& document) {
  Json list = Json::array();
  for (const Failure& item : document.failures)
    list.push_back({{"message", item.message}, {"exit_code", item.exit_code}, {"path", item.path}});
  return list;
}

Json summary(const Document& document) {
  return {{"outcome", document.is_interrupted()  ? "interrupted"
                      : exit_code(document) == 0 ? "pass"
                                                 : "fail"},
          {"passed", document.count(Verdict::pass)},
          {"failed", document.count(Verdict::fail)},
          {"inconclusive", document.count(Verdict::inconclusive)},
          {"skipped", document.count(Verdict::skipped)},
          {"errors", document.failures.size()},
          {"exit_code", exit_code(document)}};
}

}  // namespace

std::string write_json(const Document& document, const WriteOptions&) {
  Json cases = Json::array();
  for (const CaseResult& item : document.cases) cases.push_back(one_case(item));
  Json root = {{"schema_version", schema_version},
               {"tool", {{"name", "kda-check"}, {"version", version}}},
               {"request", {{"command", document.command}, {"argv", document.argv}}}};
  if (document.plan)
    root["plan"] = {{"digest", document.plan->digest},
                    {"cases", document.plan->cases},
                    {"shard", document.plan->shard},
                    {"shards", document.plan->shards}};
  if (document.plan && !document.plan->demands.empty()) {
    Json& demands = root["plan"]["demands"] = Json::array();
    for (const Demand& demand : document.plan->demands)
      demands.push_back({{"what", demand.what},
                         {"met", demand.met},
                         {"message", demand.failure.message},
                         {"exit_code", demand.failure.exit_code}});
  }
  root["fixtures"] = fixtures(document);
  root["cases"] = std::move(cases);
  for (const Section& section : document.sections) {
    if (!root.contains(section.key)) root[section.key] = Json::array();
    for (const Entry& entry : section.entries)
      root[section.key].push_back(entry_json(document, section, entry));
  }
  root["errors"] = failures(document);
  root["summary"] = summary(document);
  if (document.is_interrupted()) root["interrupted"] = {{"signal", document.signal}};
  if (!document.nothing_to_do.empty()) root["nothing_to_do"] = document.nothing_to_do;
  // Strings come from files: bytes that are no UTF-8 are replaced rather than refused.
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kda_check::report

#include "engine/report_reader.hpp"

#include <fmt/format.h>

#include <limits>

#include "base/error.hpp"
#include "base/file_text.hpp"
#include "base/names.hpp"
#include "engine/stage_rows.hpp"
#include "report/json_values.hpp"

namespace kda_check::engine {

namespace {

using report::Json;

// More is no report of ours: a process cannot say it.
constexpr std::size_t most_exit_code = 127, most_signal = 64;

double number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

/// A whole number of a range; what a conversion would make of others is anybody's guess.
std::size_t count_of(const Json& value, std::size_t least = 0, std::size_t most = std::size_t{1} << 53) {
  if (!value.is_number_unsigned() || value.get<std::size_t>() < least || value.get<std::size_t>() > most)
    throw Error(ErrorKind::input, fmt::format("wanted a whole number from {} to {}, found {}", least, most,
                                              value.is_number() ? value.dump() : value.type_name()));
  return value.get<std::size_t>();
}

std::vector<std::size_t> counts_of(const Json& list) {
  std::vector<std::size_t> counts;
  for (const Json& item : list) counts.push_back(count_of(item));
  return counts;
}

judge::Verdict verdict_of(const Json& value) {
  const std::string text = value.get<std::string>();
  for (const judge::Verdict verdict :
       {judge::Verdict::pass, judge::Verdict::fail, judge::Verdict::inconclusive, judge::Verdict::skipped})
    if (judge::name_of(verdict) == text) return verdict;
  throw Error(ErrorKind::input, fmt::format("no verdict '{}'", printable(text)));
}

report::PointResult point_of(const Json& item) {
  report::PointResult point;
  point.index = counts_of(item.at("index"));
  point.place = item.at("place");
  point.got = number_of(item.at("got")), point.expected = number_of(item.at("expected"));
  point.magnitude = number_of(item.at("magnitude"));
  point.off_by = number_of(item.value("off_by", Json("nan")));
  point.got_hex = item.at("got_hex"), point.expected_hex = item.at("expected_hex");
  return point;
}

judge::TwinJudgement twins_of(const Json& item) {
  judge::TwinJudgement found;
  found.twins = count_of(item.at("count"));
  found.ratio = number_of(item.at("ratio")), found.energy = number_of(item.at("energy"));
  if (item.contains("place")) {
    found.place = item.at("place"), found.worst.energy = number_of(item.at("place_energy"));
    found.worst.slope = number_of(item.at("place_slope")), found.worst.sigmas = number_of(item.at("sigmas"));
  }
  return found;
}

report::TensorResult tensor_of(const Json& item) {
  report::TensorResult tensor;
  tensor.name = item.at("name");
  tensor.shape = counts_of(item.at("shape"));
  tensor.dtype = item.at("dtype");
  tensor.verdict = verdict_of(item.at("verdict"));
  tensor.reason = item.at("reason");
  for (const auto& [name, value] : item.at("metrics").items())
    tensor.metrics.emplace_back(name, number_of(value));
  for (const Json& limit : item.at("limits"))
    tensor.limits.push_back({limit.at("metric"), number_of(limit.at("value")), limit.at("source")});
  if (!item.at("worst").is_null()) tensor.worst = point_of(item.at("worst"));
  for (const Json& point : item.at("worst_points")) tensor.points.push_back(point_of(point));
  tensor.worst_window = item.value("worst_window", "");
  tensor.worst_head = item.value("worst_head", "");
  if (item.contains("floor")) tensor.floor = number_of(item.at("floor"));
  if (item.contains("twins")) tensor.twins = twins_of(item.at("twins"));
  tensor.reference_fails = item.value("reference_fails", false);
  return tensor;
}

report::CaseResult case_of(const Json& item) {
  report::CaseResult result;
  if (item.contains("number")) result.number = count_of(item.at("number"));
  result.place = item.value("place", "");
  result.fixture = item.at("fixture"), result.path = item.at("path"), result.variant = item.at("variant");
  if (item.at("recorded").get<bool>()) result.role = report::Role::recorded;
  if (item.value("external", false)) result.role = report::Role::external;
  result.dtype = item.at("dtype"), result.device = item.at("device"), result.pass = item.at("pass");
  result.arithmetic = item.at("arithmetic"), result.compute = item.at("compute");
  result.against = item.at("against");
  result.compute_assumed = item.value("compute_assumed", false);
  result.oracle = item.value("oracle", "");
  if (item.contains("oracle_error")) result.oracle_error = number_of(item["oracle_error"]);
  result.oracle_device = item.value("oracle_device", "");
  result.verdict = verdict_of(item.at("verdict"));
  result.reason = item.at("reason");
  result.trials = item.value("trials", "");
  result.repro = item.value("repro", "");
  for (const Json& tensor : item.at("tensors")) result.tensors.push_back(tensor_of(tensor));
  return result;
}

report::Value value_of(const Json& value, report::Show show) {
  if (value.is_null()) return std::monostate{};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_object()) return twins_of(value);
  if (value.is_array()) return value.get<std::vector<std::string>>();
  if (show == report::Show::figure || show == report::Show::tenths) return number_of(value);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return value.get<std::string>();
}

std::vector<report::Value> values_of(const Json& item, const std::vector<report::Column>& columns) {
  std::vector<report::Value> values;
  for (const report::Column& column : columns) values.push_back(value_of(item.at(column.key), column.show));
  return values;
}

void read_stages(const Json& item, std::vector<report::Section>& sections) {
  const std::string path = item.at("path");
  // What the title is made of.
  for (const char* const key : {"answer", "dtype", "compute"}) item.at(key).get_ref<const std::string&>();
  item.at("recorded").get_ref<const bool&>();
  if (sections.empty() || sections.back().path != path) sections.push_back(stages_section(path));
  report::Section& section = sections.back();
  report::Entry& entry = section.add(values_of(item, section.columns));
  entry.title = stages_title(entry);
  if (item.contains("verdict"))
    entry.verdict = verdict_of(item.at("verdict")), entry.reason = item.at("reason");
  report::Table& table = entry.tables.emplace_back(stages_table());
  for (Json row : item.at(table.key)) {
    for (const char* const key : {"verdict", "twins", "reason"})  // that earlier versions did not write
      if (!row.contains(key)) row[key] = nullptr;
    table.rows.push_back(values_of(row, table.columns));
  }
}

report::Document document_of(const Json& root) {
  report::Document document;
  document.judges = true;
  document.command = root.at("request").at("command");
  document.argv = root.at("request").at("argv").get<std::vector<std::string>>();
  if (root.contains("plan")) {
    const Json& plan = root.at("plan");
    const std::size_t shards = count_of(plan.at("shards"), 1);
    document.plan = {
        plan.at("digest"), count_of(plan.at("cases")), count_of(plan.at("shard"), 1, shards), shards, {}};
    if (plan.contains("demands"))
      for (const Json& item : plan.at("demands"))
        document.plan->demands.push_back(
            {item.at("what"),
             item.at("met").get<bool>(),
             {item.at("message"), static_cast<int>(count_of(item.at("exit_code"), 1, most_exit_code)), {}}});
  }
  for (const Json& item : root.at("fixtures"))
    document.problems.push_back({item.at("name"), item.at("path"), item.at("shape"), item.at("options"),
                                 item.at("notes").get<std::vector<std::string>>()});
  for (const Json& item : root.at("cases")) document.cases.push_back(case_of(item));
  if (root.contains("stages"))
    for (const Json& item : root.at("stages")) read_stages(item, document.sections);
  for (const Json& item : root.at("errors"))
    document.failures.push_back({item.at("message"),
                                 static_cast<int>(count_of(item.at("exit_code"), 1, most_exit_code)),
                                 item.value("path", "")});
  document.nothing_to_do = root.value("nothing_to_do", "");
  if (root.contains("interrupted"))
    document.signal = static_cast<int>(count_of(root.at("interrupted").at("signal"), 1, most_signal));
  return document;
}

}  // namespace

report::Document read_report(const std::string& path) {
  constexpr char hint[] = "kda-check run ... --json FILE writes one";
  try {
    const Json root = Json::parse(read_text(path, {"the report"}).text);
    if (root.at("request").at("command") != "run")
      throw Error(ErrorKind::input, "no report of kda-check run", path, hint);
    if (root.at("schema_version") != report::schema_version)
      throw Error(ErrorKind::input,
                  fmt::format("its schema_version is {}; wanted {}", root.at("schema_version").dump(),
                              report::schema_version),
                  path, "write it again with this version");
    try {
      return document_of(root);
    } catch (const Error& error) {
      throw error.in(path);
    }
  } catch (const Json::parse_error& error) {
    throw Error(ErrorKind::input, fmt::format("not JSON, from byte {} on", error.byte), path);
  } catch (const Json::exception&) {
    throw Error(ErrorKind::input, "no report of kda-check run: a field is missing or of another type", path,
                hint);
  }
}

}  // namespace kda_check::engine

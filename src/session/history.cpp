#include "session/history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "base/names.hpp"
#include "report/table.hpp"
#include "session/readings.hpp"

namespace kda_check::session {

namespace {

using analysis::Reading;
using analysis::ReadingKey;
using analysis::Readings;
using Json = nlohmann::json;

constexpr char verdict_row[] = "verdict";

struct Report {
  Readings readings;
  std::map<ReadingKey, std::string> verdicts;  ///< of tensors, their metric being "verdict"
};

double number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "inf" || text == "-inf") return std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

report::TensorResult tensor_of(const Json& item) {
  report::TensorResult tensor;
  tensor.name = item.at("name");
  tensor.dtype = item.at("dtype");
  if (item.at("verdict") == "pass") tensor.verdict = compare::Verdict::pass;
  for (const auto& [name, value] : item.at("metrics").items())
    tensor.metrics.emplace_back(name, number_of(value));
  return tensor;
}

/// Only what readings are made of.
report::CaseResult case_of(const Json& item) {
  report::CaseResult result;
  result.fixture = item.at("fixture");
  result.variant = item.at("variant");
  result.recorded = item.at("recorded");
  result.dtype = item.at("dtype");
  result.device = item.at("device");
  result.arithmetic = item.at("arithmetic");
  result.against = item.at("against");
  for (const Json& tensor : item.at("tensors")) result.tensors.push_back(tensor_of(tensor));
  return result;
}

/// The worse of two verdicts of the same names.
void add_verdict(Report& report, const report::CaseResult& item, const Json& tensor) {
  const ReadingKey key{item.fixture,
                       name_of_answer(item),
                       item.dtype,
                       item.against,
                       tensor.at("name"),
                       verdict_row,
                       item.recorded ? "" : item.arithmetic};
  const auto [place, is_new] = report.verdicts.emplace(key, tensor.at("verdict"));
  if (!is_new && place->second == "pass") place->second = tensor.at("verdict");
}

Report read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorKind::input, "cannot open the report", path);
  try {
    const Json document = Json::parse(file);
    if (document.at("schema_version") != 1 || document.at("request").at("command") != "run")
      throw Error(ErrorKind::input, "no report of kda-check run", path, "kda-check run ... --json FILE");
    Report report;
    report::Result result;
    for (const Json& item : document.at("cases")) {
      result.cases.push_back(case_of(item));
      for (const Json& tensor : item.at("tensors")) add_verdict(report, result.cases.back(), tensor);
    }
    report.readings = readings_of(result);
    return report;
  } catch (const Json::parse_error& error) {
    throw Error(ErrorKind::input, fmt::format("not JSON, from byte {} on", error.byte), path);
  } catch (const Json::exception&) {
    throw Error(ErrorKind::input, "no report of kda-check run: a field is missing or of another type", path,
                "kda-check run ... --json FILE");
  }
}

HistoryRow row_of(const ReadingKey& key, bool tell_arithmetic) {
  HistoryRow row{key.fixture, key.variant, key.dtype, key.against, key.tensor, key.metric, {}, "", false};
  if (tell_arithmetic && !key.arithmetic.empty()) row.variant += fmt::format(" [{}]", key.arithmetic);
  return row;
}

template <class Map>
auto find(const Map& map, const ReadingKey& key) -> const typename Map::mapped_type* {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

/// What was in one of the two only.
template <class Value>
bool judge_presence(HistoryRow& row, const Value* first, const Value* last) {
  if (first == nullptr && last != nullptr) row.change = "new";
  if (first != nullptr && last == nullptr) row.change = "gone", row.worse = true;
  return first != nullptr && last != nullptr;
}

void judge_reading(HistoryRow& row, const Reading* first, const Reading* last) {
  if (!judge_presence(row, first, last)) return;
  row.worse = analysis::is_worse(row.metric, first->value, last->value, last->storage);
  const bool better = analysis::is_worse(row.metric, last->value, first->value, last->storage);
  row.change = row.worse && !std::isnan(first->value) ? "worse" : better && !row.worse ? "better" : "";
  row.worse = row.change == "worse";
}

void judge_verdict(HistoryRow& row, const std::string* first, const std::string* last) {
  if (!judge_presence(row, first, last)) return;
  row.worse = *first == "pass" && *last != "pass";
  row.change = row.worse ? "worse" : *first != "pass" && *last == "pass" ? "better" : "";
}

/// All keys of all reports, verdicts after the numbers of their tensor.
std::set<ReadingKey> all_keys(const std::vector<Report>& reports) {
  std::set<ReadingKey> keys;
  for (const Report& report : reports) {
    for (const auto& item : report.readings) keys.insert(item.first);
    for (const auto& item : report.verdicts) keys.insert(item.first);
  }
  return keys;
}

/// Comparisons that only their arithmetic tells apart.
std::set<ReadingKey> ambiguous(const std::set<ReadingKey>& keys) {
  std::map<ReadingKey, std::vector<ReadingKey>> by_name;
  for (const ReadingKey& key : keys) {
    ReadingKey name = key;
    name.arithmetic.clear();
    by_name[name].push_back(key);
  }
  std::set<ReadingKey> result;
  for (const auto& [name, same] : by_name)
    if (same.size() > 1) result.insert(same.begin(), same.end());
  return result;
}

bool is_metric(const std::string& name) {
  const auto slacks = analysis::slacks();
  return name == verdict_row ||
         std::any_of(slacks.begin(), slacks.end(), [&](const auto& slack) { return slack.metric == name; });
}

}  // namespace

HistoryResult history(const HistoryRequest& request) {
  if (request.paths.size() < 2)
    throw Error(ErrorKind::usage, "history: wanted two reports or more", {},
                "kda-check history old.json new.json");
  std::vector<Report> reports;
  for (const std::string& path : request.paths) reports.push_back(read(path));
  HistoryResult result;
  result.paths = request.paths;
  const std::set<ReadingKey> keys = all_keys(reports), tell = ambiguous(keys);
  for (const ReadingKey& key : keys) {
    if (!is_metric(key.metric)) continue;  // of a later version
    HistoryRow row = row_of(key, tell.count(key) > 0);
    for (const Report& report : reports) {
      const Reading* const reading = find(report.readings, key);
      const std::string* const verdict = find(report.verdicts, key);
      row.values.push_back(reading != nullptr   ? analysis::value_text(reading->value)
                           : verdict != nullptr ? *verdict
                                                : "-");
    }
    if (key.metric == verdict_row) {
      judge_verdict(row, find(reports.front().verdicts, key), find(reports.back().verdicts, key));
    } else {
      judge_reading(row, find(reports.front().readings, key), find(reports.back().readings, key));
      result.compared += row.values.front() != "-" && row.values.back() != "-";
    }
    result.worse += row.worse;
    const bool changed = std::any_of(row.values.begin(), row.values.end(),
                                     [&](const std::string& value) { return value != row.values.front(); });
    if (changed || request.all) result.rows.push_back(std::move(row));
  }
  return result;
}

std::string history_text(const HistoryResult& result) {
  std::vector<std::string> headings{"fixture", "variant", "dtype", "against", "tensor", "metric"};
  constexpr std::size_t names = 6;
  for (const std::string& path : result.paths) headings.push_back(printable(path));
  headings.emplace_back("change");
  report::Table table(headings, names);
  for (const HistoryRow& row : result.rows) {
    std::vector<std::string> cells{row.fixture, row.variant, row.dtype, row.against, row.tensor, row.metric};
    cells.insert(cells.end(), row.values.begin(), row.values.end());
    cells.push_back(row.change);
    for (std::string& cell : cells) cell = printable(cell);
    table.add(std::move(cells));
  }
  std::string out = table.empty() ? "" : table.text("") + "\n";
  if (result.compared == 0) return out + "the first and the last report have no number in common\n";
  return out + fmt::format("{} numbers in the first and the last of {} reports; {} worse\n", result.compared,
                           result.paths.size(), result.worse);
}

}  // namespace kda_check::session

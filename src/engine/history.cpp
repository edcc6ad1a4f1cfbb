#include "engine/history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.hpp"
#include "engine/readings.hpp"
#include "engine/report_reader.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using judge::Reading;
using judge::ReadingKey;
using judge::Readings;
using report::Show;

constexpr char verdict_row[] = "verdict";

struct Report {
  Readings readings;
  std::map<ReadingKey, std::string> verdicts;  ///< of tensors, their metric being "verdict"
};

Report read(const std::string& path) {
  const report::Document document = read_report(path);
  Report report;
  report.readings = readings_of(document.cases);
  for (const report::CaseResult& item : document.cases)
    for (const report::TensorResult& tensor : item.tensors) {
      const std::string verdict(judge::name_of(tensor.verdict));
      const auto [place, is_new] = report.verdicts.emplace(key_of(item, tensor.name, verdict_row), verdict);
      if (!is_new && place->second == "pass") place->second = verdict;  // the worse of two
    }
  return report;
}

struct HistoryRow {
  ReadingKey key;
  std::vector<std::string> values;  ///< one for each file; "-" where it has none
  std::string change;               ///< first to last: "", "worse", "better", "new", "gone"
  bool worse = false;
};

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
  row.worse = judge::is_worse(row.key.metric, first->value, last->value, last->storage);
  const bool better = judge::is_worse(row.key.metric, last->value, first->value, last->storage);
  row.change = row.worse && !std::isnan(first->value) ? "worse" : better && !row.worse ? "better" : "";
  row.worse = row.change == "worse";
}

/// A tensor that its report did not compare is neither better nor worse.
bool is_left_out(const Report& report, ReadingKey key) {
  key.metric = verdict_row;
  const std::string* const verdict = find(report.verdicts, key);
  return verdict != nullptr && *verdict == judge::name_of(judge::Verdict::skipped);
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

bool is_metric(const std::string& name) {
  const auto slacks = judge::slacks();
  return name == verdict_row ||
         std::any_of(slacks.begin(), slacks.end(), [&](const auto& slack) { return slack.metric == name; });
}

/// What is worse first, then what is gone or new, then the rest.
int rank_of(const HistoryRow& row) {
  constexpr std::string_view order[] = {"worse", "gone", "better", "new", ""};
  return static_cast<int>(std::ranges::find(order, row.change) - std::begin(order));
}

void add(report::Section& section, const HistoryRow& row) {
  const ReadingKey& key = row.key;
  std::vector<report::Value>& values =
      section.add({row.change, key.fixture, key.variant, key.dtype, key.against, key.tensor, key.metric})
          .values;
  values.insert(values.end(), row.values.begin(), row.values.end());
  values.insert(values.end(), {row.values, key.arithmetic});
}

}  // namespace

report::Document history(const HistoryRequest& request) {
  if (request.paths.size() < 2)
    throw Error(ErrorKind::usage, "history: wanted two reports or more", {},
                "kda-check history old.json new.json");
  std::vector<Report> reports;
  for (const std::string& path : request.paths) reports.push_back(read(path));
  std::vector<HistoryRow> rows;
  std::size_t compared = 0, worse = 0;
  for (const ReadingKey& key : all_keys(reports)) {
    if (!is_metric(key.metric)) continue;  // of a later version
    const bool left_out = is_left_out(reports.front(), key) || is_left_out(reports.back(), key);
    if (left_out && key.metric != verdict_row) continue;
    HistoryRow row{key, {}, {}, false};
    for (const Report& report : reports) {
      const Reading* const reading = find(report.readings, key);
      const std::string* const verdict = find(report.verdicts, key);
      row.values.push_back(reading != nullptr   ? judge::value_text(reading->value)
                           : verdict != nullptr ? *verdict
                                                : "-");
    }
    if (left_out) {
      // its verdict is shown where it changed
    } else if (key.metric == verdict_row) {
      judge_verdict(row, find(reports.front().verdicts, key), find(reports.back().verdicts, key));
    } else {
      judge_reading(row, find(reports.front().readings, key), find(reports.back().readings, key));
      compared += row.values.front() != "-" && row.values.back() != "-";
    }
    worse += row.worse;
    const bool changed = std::ranges::any_of(
        row.values, [&](const std::string& value) { return value != row.values.front(); });
    if (changed || request.all) rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(rows, {}, rank_of);

  report::Section section;
  section.key = "history";
  section.tabular = true;
  section.columns = {{"change", {}},  {"fixture", {}}, {"variant", {}}, {"dtype", {}},
                     {"against", {}}, {"tensor", {}},  {"metric", {}}};
  // A column for each report, under its path; in JSON they are one list, whatever the reports are called.
  for (const std::string& path : request.paths) section.columns.push_back({{}, path});
  section.columns.insert(section.columns.end(), {{"values", {}, Show::data},
                                                 {"arithmetic", {}, Show::words, report::Detail::verbose}});
  for (const HistoryRow& row : rows) add(section, row);
  section.title = fmt::format("{}: {} in the first and the last of {} reports; {} worse or gone",
                              worse > 0 || compared == 0 ? "WORSE" : "NO WORSE",
                              report::counted(compared, "number"), request.paths.size(), worse);
  report::Document document;
  if (section.entries.empty()) document.nothing_to_do = section.title;
  document.sections.push_back(std::move(section));
  if (compared == 0)
    document.failures.push_back({"the first and the last report have no number in common", 1, {}});
  else if (worse > 0)
    document.failures.push_back({fmt::format("from the first report to the last {} got worse or went away",
                                             report::counted(worse, "number")),
                                 1,
                                 {}});
  return document;
}

}  // namespace kda_check::engine

// The result of bench as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "report/table.hpp"
#include "session/bench.hpp"

namespace kda_check::session {

namespace {

using Json = nlohmann::ordered_json;

/// A figure of a row, 0 where it does not apply.
struct Column {
  const char* heading;
  int digits;
  double (*value)(const BenchRow& row);
};
constexpr Column columns[] = {
    {"us", 3, [](const BenchRow& row) { return row.microseconds; }},
    {"Gflop/s", 1, [](const BenchRow& row) { return row.gflops; }},
    {"% of peak", 1, [](const BenchRow& row) { return 100 * row.of_peak; }},
    {"x recurrent", 2, [](const BenchRow& row) { return row.of_recurrent; }},
    {"ms", 3, [](const BenchRow& row) { return row.milliseconds; }},
    {"spread %", 1, [](const BenchRow& row) { return 100 * row.spread; }},
    {"floor ms", 3, [](const BenchRow& row) { return row.floor_milliseconds; }},
    {"x floor", 1, [](const BenchRow& row) { return row.over_floor(); }},
};

std::vector<Column> columns_for(const std::vector<BenchRow>& rows) {
  std::vector<Column> list;
  std::copy_if(std::begin(columns), std::end(columns), std::back_inserter(list), [&](const Column& column) {
    return std::any_of(rows.begin(), rows.end(), [&](const BenchRow& row) { return column.value(row) > 0; });
  });
  return list;
}

std::string table_of(const std::vector<BenchRow>& rows) {
  const std::vector<Column> list = columns_for(rows);
  std::vector<std::string> headings{"variant", "dtype"};
  for (const Column& column : list) headings.emplace_back(column.heading);
  headings.emplace_back("arithmetic");
  report::Table table(headings, 2);
  for (const BenchRow& row : rows) {
    std::vector<std::string> cells{row.pass == "forward" ? row.variant : row.variant + " " + row.pass,
                                   row.dtype};
    for (const Column& column : list) {
      const double value = column.value(row);
      cells.push_back(value > 0 ? fmt::format("{:.{}f}", value, column.digits) : "-");
    }
    cells.push_back(row.arithmetic);
    table.add(std::move(cells));
  }
  return table.text("  ");
}

/// The name of the device that timed rows itself; empty without any.
std::string device_of(const BenchResult& result) {
  for (const BenchRow& row : result.rows)
    if (row.milliseconds > 0) return row.device;
  return {};
}

}  // namespace

std::string bench_text(const BenchResult& result) {
  std::string out =
      fmt::format("{}  {} threads  kernels for {}\n", result.shape, result.threads, result.instruction_set);
  if (result.peak.fp32 > 0)
    fmt::format_to(std::back_inserter(out), "FMA peak: {:.1f} Gflop/s in fp32, {:.1f} in fp64\n",
                   result.peak.fp32, result.peak.fp64);
  if (result.copy_bandwidth > 0)
    fmt::format_to(std::back_inserter(out), "{}: a copy moves {:.0f} GB/s, read and written\n",
                   device_of(result), result.copy_bandwidth * 1e-9);
  out += '\n';
  out += table_of(result.rows);
  if (std::any_of(result.rows.begin(), result.rows.end(), [](const auto& row) { return row.of_peak > 1; }))
    out += "\nnote: more than 100 % of the peak: the machine was busier while the peak was measured\n";
  return out;
}

std::string bench_json(const BenchResult& result) {
  Json rows = Json::array();
  for (const BenchRow& row : result.rows) {
    Json item = {{"variant", row.variant},
                 {"pass", row.pass},
                 {"dtype", row.dtype},
                 {"arithmetic", row.arithmetic},
                 {"us_per_token_and_head", row.microseconds},
                 {"gflops", row.gflops},
                 {"of_peak", row.of_peak},
                 {"of_recurrent", row.of_recurrent},
                 {"device", row.device}};
    if (row.milliseconds > 0) {
      item["ms"] = row.milliseconds;
      item["spread"] = row.spread;
      item["floor_ms"] = row.floor_milliseconds;
    }
    rows.push_back(std::move(item));
  }
  Json document = {{"schema_version", 1},
                   {"shape", result.shape},
                   {"threads", result.threads},
                   {"repeats", result.repeats},
                   {"instruction_set", result.instruction_set},
                   {"fma_peak_gflops", {{"fp32", result.peak.fp32}, {"fp64", result.peak.fp64}}}};
  if (result.copy_bandwidth > 0) document["copy_gb_per_s"] = result.copy_bandwidth * 1e-9;
  document["rows"] = std::move(rows);
  return document.dump(2) + "\n";
}

}  // namespace kda_check::session

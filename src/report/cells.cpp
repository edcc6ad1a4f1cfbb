#include "report/cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

namespace kda_check::report {

using compare::Verdict;

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return result;
}

std::string short_number(double value) {
  if (std::isfinite(value) && value == std::floor(value) && std::fabs(value) < 1e6)
    return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

const double* metric(const TensorResult& tensor, std::string_view name) {
  for (const auto& [metric_name, value] : tensor.metrics)
    if (metric_name == name) return &value;
  return nullptr;
}

std::string metric_text(const TensorResult& tensor, std::string_view name) {
  const double* const value = metric(tensor, name);
  return value != nullptr ? short_number(*value) : "-";
}

std::string precision_text(const CaseResult& item) {
  return item.compute.empty() || item.compute == item.dtype ? item.dtype : item.dtype + "/" + item.compute;
}

std::string reference_text(const Result& result, const CaseResult& item) {
  const bool is_group = result.command == "run" && !item.against.empty() && item.against != "oracle" &&
                        item.against != "replay";
  return is_group ? "expected/" + item.against : item.against;
}

std::string point_text(const PointResult& point) {
  return fmt::format("{} got {:.9g} ({}), expected {:.9g} ({})", point.place, point.got, point.got_hex,
                     point.expected, point.expected_hex);
}

std::string counts_text(const Result& result) {
  std::string text = fmt::format("{} failed, {} inconclusive, {} passed, {} skipped",
                                 result.count(Verdict::fail), result.count(Verdict::inconclusive),
                                 result.count(Verdict::pass), result.count(Verdict::skipped));
  if (!result.errors.empty())
    text += fmt::format("; {} {}", result.errors.size(), result.errors.size() == 1 ? "error" : "errors");
  return text;
}

std::string Row::name() const {
  std::string text = item->variant;
  const std::string precision = precision_text(*item);
  if (!precision.empty()) text += " " + precision;
  return tensor != nullptr ? text + " " + tensor->name : text;
}

std::string row_and_reference(const Result& result, const Row& row) {
  const std::string reference = reference_text(result, *row.item);
  return reference.empty() ? row.name() : row.name() + " against " + reference;
}

namespace {

/// A case whose verdict none of its tensors has: options that differ, or nothing ran.
bool stands_beside_its_tensors(const CaseResult& item) {
  return item.tensors.empty() ||
         (item.verdict == Verdict::fail &&
          std::none_of(item.tensors.begin(), item.tensors.end(),
                       [](const TensorResult& tensor) { return tensor.verdict == Verdict::fail; }));
}

}  // namespace

std::vector<FixtureRows> rows_by_fixture(const Result& result) {
  std::vector<FixtureRows> list;
  std::map<std::string, std::size_t> by_path;
  for (const FixtureResult& fixture : result.fixtures) {
    by_path.emplace(fixture.path, list.size());
    list.push_back({fixture.name, fixture.path, &fixture, {}});
  }
  for (const CaseResult& item : result.cases) {
    const auto [found, is_new] = by_path.emplace(item.path, list.size());
    if (is_new) list.push_back({item.fixture, item.path, nullptr, {}});
    std::vector<Row>& rows = list[found->second].rows;
    for (const TensorResult& tensor : item.tensors)
      rows.push_back({&item, &tensor, tensor.verdict, tensor.reason});
    if (stands_beside_its_tensors(item)) rows.push_back({&item, nullptr, item.verdict, item.reason});
  }
  return list;
}

std::vector<Row> bad_rows(const std::vector<FixtureRows>& fixtures) {
  std::vector<Row> bad;
  for (const Verdict verdict : {Verdict::fail, Verdict::inconclusive})
    for (const FixtureRows& fixture : fixtures)
      for (const Row& row : fixture.rows)
        if (row.verdict == verdict) bad.push_back(row);
  return bad;
}

std::string unexplained_failure(const Result& result) {
  if (result.exit_code() == 0 || !result.errors.empty() || result.count(Verdict::fail) > 0 ||
      result.count(Verdict::inconclusive) > 0)
    return {};
  if (result.cases.empty()) return "nothing was compared";
  return result.count(Verdict::pass) > 0 ? "no variant ran: only recorded answers were compared"
                                         : "nothing passed: every comparison was skipped";
}

}  // namespace kda_check::report

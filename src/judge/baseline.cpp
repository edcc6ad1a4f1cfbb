#include "judge/baseline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "base/names.hpp"
#include "judge/measures/metrics.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::judge {

namespace {

double step_of(const Metric& metric, numeric::DType storage) {
  return metric.step + metric.roundoffs * numeric::format_of(storage).unit_roundoff();
}

constexpr std::array<std::string_view, 8> columns{"fixture", "variant", "dtype", "against",
                                                  "tensor",  "metric",  "value", "arithmetic"};

std::string header() { return join({columns.begin(), columns.end()}, "\t"); }

/// Names come from files: a row must stay one line of eight cells.
std::string cell(const std::string& text) { return text.empty() ? "-" : printable(text); }

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  for (std::size_t begin = 0;;) {
    const std::size_t end = line.find('\t', begin);
    cells.emplace_back(line.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return cells;
    begin = end + 1;
  }
}

void add_row(Baseline& baseline, std::string_view line, const std::string& place) {
  const std::vector<std::string> cells = cells_of(line);
  if (cells.size() != columns.size() ||
      std::any_of(cells.begin(), cells.end(), [](const auto& text) { return text.empty(); }))
    throw Error(ErrorKind::input, fmt::format("wanted {} columns with tabs between", columns.size()), place);
  // Rows are written with names made printable: no other would ever be met.
  if (std::any_of(cells.begin(), cells.end(), [](const auto& text) { return printable(text) != text; }))
    throw Error(ErrorKind::input, "a row holds what no baseline is written with", place);
  const std::string& number = cells[6];
  double value = 0;
  const auto [end, failure] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (failure != std::errc{} || end != number.data() + number.size() || !(value >= 0) ||
      !std::isfinite(value))
    throw Error(ErrorKind::input, fmt::format("'{}' is no value >= 0", printable(number)), place);
  if (find_metric(cells[5]) == nullptr)
    throw Error(ErrorKind::input, fmt::format("no metric '{}'", printable(cells[5])), place,
                suggest(cells[5], metric_names()));
  const ReadingKey key{cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[7]};
  if (!baseline.emplace(key, value).second) throw Error(ErrorKind::input, "this row is there twice", place);
}

/// A row is looked for among readings under the names the file has.
ReadingKey as_written(const ReadingKey& key) {
  return {cell(key.fixture), cell(key.variant), cell(key.dtype),     cell(key.against),
          cell(key.tensor),  cell(key.metric),  cell(key.arithmetic)};
}

Readings as_written(const Readings& readings) {
  Readings written;
  for (const auto& [key, reading] : readings) written.emplace(as_written(key), reading);
  return written;
}

/// Rows of a GPU that this run had nothing to do with.
bool is_elsewhere(const ReadingKey& key, const Readings& readings) {
  const std::size_t at = key.variant.find('@');
  if (at == std::string::npos || key.variant.starts_with("expected/")) return false;  // as recorded anywhere
  return std::none_of(readings.begin(), readings.end(),
                      [&](const auto& item) { return item.first.variant.ends_with(key.variant.substr(at)); });
}

/// The comparison was made, of the tensors of the same pass, and this one was not among them.
bool lost_its_tensor(const ReadingKey& key, const Readings& readings) {
  const auto is_forward = [forward = kda::tensors_of(kda::Pass::forward)](std::string_view tensor) {
    return std::ranges::find(forward, tensor) != forward.end();
  };
  bool made = false;
  for (const auto& [other, reading] : readings) {
    if (std::tie(other.fixture, other.variant, other.dtype, other.against, other.arithmetic) !=
        std::tie(key.fixture, key.variant, key.dtype, key.against, key.arithmetic))
      continue;
    if (other.tensor == key.tensor) return false;
    made = made || is_forward(other.tensor) == is_forward(key.tensor);
  }
  return made;
}

}  // namespace

std::string ReadingKey::text() const {
  return fmt::format("{} {} {} against {}: {} {}", fixture, variant, dtype, against, tensor, metric);
}

double allowed(std::string_view metric, double before, numeric::DType storage) {
  const Metric* const known = find_metric(metric);
  if (known == nullptr) throw Error(ErrorKind::internal, fmt::format("no metric '{}'", metric));
  return known->factor * std::fabs(before) + step_of(*known, storage);
}

bool is_worse(std::string_view metric, double before, double after, numeric::DType storage) {
  // Six digits of the file may lie below what was measured; a slack of nothing must still hold that.
  return !(std::fabs(as_written(after)) <= allowed(metric, before, storage));
}

bool is_kept(std::string_view metric) {
  const Metric* const known = find_metric(metric);
  return known != nullptr && known->is_kept;
}

std::string value_text(double value) {
  const bool count = value == std::floor(value) && std::fabs(value) < 1e15;
  return count ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value);
}

double as_written(double value) {
  if (!std::isfinite(value)) return value;
  const std::string text = value_text(value);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Baseline parse_baseline(std::string_view text, const std::string& path) {
  Baseline baseline;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const std::string place = fmt::format("{}:{}", path, ++number);
    begin = end + 1;
    if (number == 1) {
      if (line != header())
        throw Error(ErrorKind::input, "no baseline: the first line is not its header", place,
                    "kda-check run ... --baseline FILE --update-baseline writes one");
    } else {
      add_row(baseline, line, place);
    }
  }
  if (number == 0) throw Error(ErrorKind::input, "an empty baseline", path);
  return baseline;
}

std::string baseline_text(const Baseline& baseline) {
  std::string out = header() + "\n";
  for (const auto& [key, value] : baseline)
    out += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", key.fixture, key.variant, key.dtype, key.against,
                       key.tensor, key.metric, value_text(value), key.arithmetic);
  return out;
}

std::vector<Worsened> worsened(const Baseline& baseline, const Readings& readings) {
  std::vector<Worsened> rows;
  for (const auto& [measured, reading] : readings) {
    const ReadingKey key = as_written(measured);
    const auto row = baseline.find(key);
    if (row != baseline.end() && is_worse(key.metric, row->second, reading.value, reading.storage))
      rows.push_back(
          {key, row->second, std::fabs(reading.value), allowed(key.metric, row->second, reading.storage)});
  }
  return rows;
}

BaselineFindings findings(const Baseline& baseline, const Readings& measured) {
  const Readings readings = as_written(measured);
  BaselineFindings result;
  for (const auto& [key, reading] : readings) {
    const auto row = baseline.find(key);
    if (row == baseline.end()) {
      if (is_kept(key.metric) && reading.sound) result.fresh.push_back(key);
      continue;
    }
    ++result.met;
    if (row->second > 4 * std::fabs(reading.value) + step_of(*find_metric(key.metric), reading.storage))
      result.loose.push_back(key);
  }
  for (const auto& [key, value] : baseline)
    if (readings.find(key) == readings.end() && !is_elsewhere(key, readings)) {
      result.stale.push_back(key);
      if (lost_its_tensor(key, readings)) result.lost.push_back(key);
    }
  return result;
}

Baseline updated(const Baseline& baseline, const Readings& measured, Ratchet ratchet, bool drop_stale) {
  const Readings readings = as_written(measured);
  Baseline result = baseline;
  for (const auto& [key, reading] : readings) {
    const double after = as_written(std::fabs(reading.value));
    const auto row = result.find(key);
    if (!reading.sound || !std::isfinite(after)) continue;
    if (row == result.end()) {
      if (is_kept(key.metric)) result.emplace(key, after);
    } else if (after < row->second ||
               (ratchet == Ratchet::worse && is_worse(key.metric, row->second, after, reading.storage))) {
      row->second = after;
    }
  }
  if (!drop_stale) return result;
  std::set<std::string> fixtures;
  for (const auto& item : readings) fixtures.insert(item.first.fixture);
  std::erase_if(result, [&](const auto& row) {
    return readings.find(row.first) == readings.end() && fixtures.count(row.first.fixture) > 0 &&
           !is_elsewhere(row.first, readings);
  });
  return result;
}

}  // namespace kda_check::judge

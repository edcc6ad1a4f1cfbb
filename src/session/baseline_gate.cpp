#include "session/baseline_gate.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "base/file_text.hpp"
#include "base/names.hpp"
#include "session/judging.hpp"
#include "session/readings.hpp"

namespace kda_check::session {

namespace {

using analysis::Baseline;
using analysis::BaselineFindings;
using analysis::ReadingKey;
using analysis::value_text;

Baseline read(const std::string& path, bool may_be_missing) {
  std::error_code failure;
  if (may_be_missing && !std::filesystem::exists(path, failure)) return {};
  const std::optional<std::string> text = file_text(path);
  if (!text)
    throw Error(ErrorKind::input, "cannot read the baseline", path,
                "--update-baseline writes a new one where there is none");
  return analysis::parse_baseline(*text, path);
}

/// Fails one tensor for one metric, or says it too where it failed already.
void fail(report::TensorResult& tensor, const std::string& reason) {
  if (tensor.verdict == compare::Verdict::inconclusive) return;
  tensor.verdict = compare::Verdict::fail;
  tensor.reason += (tensor.reason.empty() ? "" : "; ") + reason;
}

void judge_case(report::CaseResult& item, const Baseline& baseline) {
  report::Result alone;
  alone.cases.push_back(item);
  for (const analysis::Worsened& row : analysis::worsened(baseline, readings_of(alone)))
    for (report::TensorResult& tensor : item.tensors)
      if (printable(tensor.name) == row.key.tensor)
        fail(tensor, fmt::format("worse than the baseline: {} {} > {} (was {})", row.key.metric,
                                 value_text(row.after), value_text(row.allowed), value_text(row.before)));
  conclude(item);
}

void add_lines(std::vector<std::string>& lines, const std::vector<ReadingKey>& keys, std::string_view what) {
  constexpr std::size_t most = 5;
  for (std::size_t i = 0; i < keys.size() && i < most; ++i)
    lines.push_back(fmt::format("baseline: {}: {}", what, keys[i].text()));
  if (keys.size() > most) lines.push_back(fmt::format("baseline: {}: {} more", what, keys.size() - most));
}

std::string change_line(const ReadingKey& key, const std::string& before, const std::string& after) {
  return fmt::format("baseline: {}: {} -> {}", key.text(), before, after);
}

std::vector<std::string> changes(const Baseline& before, const Baseline& after) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : after) {
    const auto row = before.find(key);
    if (row == before.end()) {
      lines.push_back(change_line(key, "new", value_text(value)));
    } else if (row->second != value) {
      lines.push_back(change_line(key, value_text(row->second), value_text(value)));
    }
  }
  for (const auto& [key, value] : before)
    if (after.find(key) == after.end()) lines.push_back(change_line(key, value_text(value), "gone"));
  return lines;
}

}  // namespace

BaselineGate::BaselineGate(BaselineRequest request)
    : request_(std::move(request)), baseline_(read(request_.path, request_.update.has_value())) {
  if (request_.update) replacement_.emplace(request_.path);
}

std::vector<std::string> BaselineGate::judge(report::Result& result) {
  readings_ = readings_of(result);
  const BaselineFindings found = analysis::findings(baseline_, readings_);
  std::vector<std::string> lines;
  if (found.met == 0 && !request_.update)
    result.errors.push_back({fmt::format("no row of the baseline is about this run ({})", request_.path), 1});
  // Rows that may rise are no failure; the update says which did.
  if (request_.update != analysis::Ratchet::worse)
    for (report::CaseResult& item : result.cases)
      if (!item.tensors.empty()) judge_case(item, baseline_);
  if (request_.update) return lines;
  add_lines(lines, found.loose, "loose, more than four times what was measured");
  if (!request_.narrowed && result.errors.empty()) add_lines(lines, found.stale, "stale, no such comparison");
  add_lines(lines, found.fresh, "new, no row");
  if (!lines.empty())
    lines.push_back(fmt::format("baseline: --update-baseline brings {} up to date", request_.path));
  return lines;
}

std::vector<std::string> BaselineGate::update(const report::Result& result) {
  if (!request_.update) return {};
  if (!result.errors.empty())
    return {fmt::format("baseline: {} stays as it was: not everything could be read", request_.path)};
  const Baseline after =
      analysis::updated(baseline_, readings_, *request_.update, /*drop_stale=*/!request_.narrowed);
  std::vector<std::string> lines = changes(baseline_, after);
  if (after.empty()) return {"baseline: nothing passed, nothing is written"};
  {
    std::ofstream file(replacement_->temporary(), std::ios::binary);
    file << analysis::baseline_text(after);
    if (!file.flush())
      throw Error(ErrorKind::environment, fmt::format("cannot write the baseline: {}", std::strerror(errno)),
                  request_.path);
  }
  replacement_->commit();
  lines.push_back(
      fmt::format("baseline: {} has {} rows, {} changed", request_.path, after.size(), lines.size()));
  return lines;
}

}  // namespace kda_check::session

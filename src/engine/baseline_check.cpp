#include "engine/baseline_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/file_text.hpp"
#include "base/names.hpp"
#include "engine/judged.hpp"
#include "engine/readings.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::engine {

namespace {

using judge::Baseline;
using judge::ReadingKey;
using judge::value_text;

/// Fails one tensor for one metric, or says it too where it failed already.
void fail(report::TensorResult& tensor, const std::string& reason) {
  if (tensor.verdict == judge::Verdict::inconclusive) return;
  tensor.verdict = judge::Verdict::fail;
  tensor.reason += (tensor.reason.empty() ? "" : "; ") + reason;
}

constexpr std::size_t most_lines = 5;

void add_lines(std::vector<std::string>& lines, const std::vector<ReadingKey>& keys, std::string_view what) {
  for (std::size_t i = 0; i < keys.size() && i < most_lines; ++i)
    lines.push_back(fmt::format("baseline: {}: {}", what, keys[i].text()));
  if (keys.size() > most_lines)
    lines.push_back(fmt::format("baseline: {}: {} more", what, keys.size() - most_lines));
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

/// Recorded, or a program's: what a user brought, and what this program cannot answer in its place.
bool is_of_a_user(const ReadingKey& key) {
  const std::string name = key.variant.substr(0, key.variant.find('@'));
  const auto variants = kda::variants();
  return std::none_of(variants.begin(), variants.end(),
                      [&](const auto& variant) { return variant.name == name; });
}

/// The answers of users, or their tensors, with rows and without a comparison, each once. `all`: of
/// everything, else only of comparisons that were made without a tensor.
std::vector<std::string> vanished(const judge::BaselineFindings& found, bool all) {
  std::vector<std::string> names;
  for (const ReadingKey& key : all ? found.stale : found.lost) {
    if (!is_of_a_user(key)) continue;
    const bool lost = std::ranges::find(found.lost, key) != found.lost.end();
    names.push_back(lost ? fmt::format("{} of {} of {}", key.tensor, key.variant, key.fixture)
                         : fmt::format("{} of {}", key.variant, key.fixture));
  }
  return without_repeats(std::move(names));
}

}  // namespace

BaselineCheck::BaselineCheck(BaselineRequest request) : request_(std::move(request)) {
  if (request_.update) file_.emplace(request_.path, OutputKind::kept);
  std::error_code failure;
  if (request_.update && !std::filesystem::exists(request_.path, failure)) return;
  const TextFile read =
      read_text(request_.path, {"the baseline", "--update-baseline writes a new one where there is none"});
  baseline_ = judge::parse_baseline(read.text, request_.path);
  if (file_) file_->replaces(read.identity);
}

void BaselineCheck::judge(std::span<report::CaseResult> cases) const {
  // Rows that may rise are no failure; the update says which did.
  if (request_.update == judge::Ratchet::worse) return;
  for (report::CaseResult& item : cases) {
    const std::vector<judge::Worsened> worsened = judge::worsened(baseline_, readings_of({&item, 1}));
    for (const judge::Worsened& row : worsened)
      for (report::TensorResult& tensor : item.tensors)
        if (printable(tensor.name) == row.key.tensor)
          fail(tensor, fmt::format("worse than the baseline: {} {} > {} (was {})", row.key.metric,
                                   value_text(row.after), value_text(row.allowed), value_text(row.before)));
    if (!worsened.empty()) conclude(item);
  }
  leave_out_wrong_references(cases);
}

std::vector<std::string> BaselineCheck::findings(report::Document& document, BaselineScope scope,
                                                 std::vector<report::Demand>& demands) {
  readings_ = readings_of(document.cases);
  if (request_.update) return {};
  const judge::BaselineFindings found = judge::findings(baseline_, readings_);
  const bool whole = !document.is_interrupted() && document.nothing_to_do.empty();
  const report::Demand demand{
      "--baseline",
      found.met > 0,
      {fmt::format("no row of the baseline is about this run ({}); hint: rows are known by the path of their "
                   "fixture as typed; --update-baseline writes those of this run",
                   request_.path),
       1,
       {}}};
  if (whole && document.is_part())
    demands.push_back(demand);
  else if (whole && !demand.met)
    document.failures.push_back(demand.failure);
  std::vector<std::string> lines;
  add_lines(lines, found.loose, "loose, more than four times what was measured");
  if (scope != BaselineScope::some_tensors && whole && document.failures.empty()) {
    const std::vector<std::string> names = vanished(found, scope == BaselineScope::everything);
    for (std::size_t i = 0; i < names.size() && i < most_lines; ++i)
      document.failures.push_back(
          {fmt::format(
               "{} has rows in the baseline and is no longer there ({}); hint: if it is meant to be gone, {}",
               names[i], request_.path,
               scope == BaselineScope::everything ? "--update-baseline" : "remove them"),
           1,
           {}});
    if (scope == BaselineScope::everything) add_lines(lines, found.stale, "stale, no such comparison");
  }
  add_lines(lines, found.fresh, "new, no row");
  if (!lines.empty())
    lines.push_back(fmt::format("baseline: --update-baseline brings {} up to date", request_.path));
  return lines;
}

std::vector<std::string> BaselineCheck::update(const report::Document& document, BaselineScope scope) {
  if (!request_.update) return {};
  const bool is_complete = !document.plan || report::unmet(document.plan->demands).empty();
  if (!document.failures.empty() || document.is_interrupted() || !is_complete)
    return {fmt::format("baseline: {} stays as it was: not everything was read and run", request_.path)};
  const Baseline after = judge::updated(baseline_, readings_, *request_.update,
                                        /*drop_stale=*/scope == BaselineScope::everything);
  if (after.empty()) return {"baseline: nothing passed, nothing is written"};
  std::vector<std::string> lines = changes(baseline_, after);
  const std::string conclusion =
      fmt::format("baseline: {} has {} rows, {} changed", request_.path, after.size(), lines.size());
  file_->commit(judge::baseline_text(after));
  if (baseline_.empty()) lines.clear();  // all of them are new
  lines.insert(lines.begin(), conclusion);
  return lines;
}

}  // namespace kda_check::engine

#include "session/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.hpp"
#include "base/names.hpp"
#include "compare/metrics.hpp"
#include "fixture/tensor_reader.hpp"
#include "session/describe.hpp"
#include "session/judging.hpp"
#include "session/profile.hpp"

namespace kda_check::session {

namespace {

using compare::Verdict;
using fixture::DatasetInfo;
using fixture::Fixture;

/// One side: a file, or one expected group of it.
struct Side {
  Side(const std::string& text, const fixture::ReadLimits& limits) {
    std::string path = text;
    if (const std::size_t colon = text.rfind(':');
        colon != std::string::npos && !std::filesystem::exists(text)) {
      path = text.substr(0, colon);
      group = text.substr(colon + 1);
    }
    file.emplace(Fixture::open(path, limits));
    if (!group.empty() && file->expected_named(group) == nullptr) {
      std::vector<std::string> groups;
      for (const fixture::ExpectedGroup& candidate : file->expected()) groups.push_back(candidate.name);
      throw Error(ErrorKind::usage, fmt::format("no group expected/{}", group), path, suggest(group, groups));
    }
    collect();
  }

  /// Datasets by the name under which they meet their partner: the path below the group, or below the root.
  void collect() {
    const auto take = [&](const std::vector<DatasetInfo>& list, std::size_t prefix) {
      for (const DatasetInfo& info : list) {
        names.push_back(info.path.substr(prefix));
        datasets.emplace(names.back(), info);
      }
    };
    if (!group.empty()) {
      const fixture::ExpectedGroup& chosen = *file->expected_named(group);
      const std::size_t prefix = ("/expected/" + group + "/").size();
      take(chosen.tensors, prefix);
      take(chosen.stages, prefix);
      return;
    }
    take(file->inputs(), 1);
    for (const fixture::ExpectedGroup& answers : file->expected()) {
      take(answers.tensors, 1);
      take(answers.stages, 1);
    }
  }

  std::string label() const { return group.empty() ? file->path() : file->path() + ":" + group; }

  std::optional<Fixture> file;
  std::string group;
  std::vector<std::string> names;
  std::map<std::string, DatasetInfo> datasets;
};

bool same_place(const Side& a, const Side& b) {
  std::error_code failure;
  return a.group == b.group && std::filesystem::equivalent(a.file->path(), b.file->path(), failure);
}

bool selected(const JudgingRequest& request, const std::string& name) {
  if (request.tensors.empty()) return true;
  return std::any_of(request.tensors.begin(), request.tensors.end(), [&](const std::string& wanted) {
    return wanted == name || wanted == fixture::leaf(name);
  });
}

report::TensorResult undecided(const std::string& name, const tensor::Shape& shape, Verdict verdict,
                               std::string reason) {
  report::TensorResult result;
  result.name = name;
  result.shape = shape;
  result.verdict = verdict;
  result.reason = std::move(reason);
  return result;
}

/// Elements that are asked for at once: a few MiB, and less under a small memory budget.
std::size_t block_elements(const DatasetInfo& info, const fixture::ReadLimits& limits) {
  constexpr std::size_t largest = std::size_t{16} << 20, least = std::size_t{64} << 10;
  return std::clamp(limits.memory_budget / 16, least, largest) / numeric::format_of(*info.dtype).bytes;
}

compare::ElementSource source_of(const fixture::TensorReader& reader) {
  return [&reader](std::size_t begin, std::size_t count, std::byte* room) {
    return reader.elements(begin, count, room);
  };
}

/// Reads both tensors once, block by block.
void compare_blocks(compare::Comparison& comparison, fixture::TensorReader& got,
                    fixture::TensorReader& expected, const fixture::ReadLimits& limits) {
  const std::size_t size = tensor::element_count(got.info().shape);
  const std::size_t wanted = block_elements(got.info(), limits);
  const fixture::TensorReader& cut_by = got.direct() ? expected : got;
  for (std::size_t begin = 0; begin < size;) {
    const std::size_t count = cut_by.end_of_block(begin, wanted) - begin;
    got.prepare(begin, count);
    expected.prepare(begin, count);
    comparison.add_read(begin, count, source_of(got), *expected.info().dtype, source_of(expected));
    begin += count;
  }
  got.check_unchanged();
  expected.check_unchanged();
}

report::TensorResult compared_pair(const Side& got, const Side& expected, const std::string& name,
                                   const DiffRequest& request) {
  const DatasetInfo &a = got.datasets.at(name), &b = expected.datasets.at(name);
  if (a.shape != b.shape)
    return undecided(
        name, a.shape, Verdict::fail,
        fmt::format("is {} but expected is {}", tensor::to_string(a.shape), tensor::to_string(b.shape)));
  compare::refuse_limits_finer_than_storage(request.judging.limits, request.judging.atol.value_or(0),
                                            request.judging.rtol.value_or(0), *a.dtype);
  fixture::TensorReader got_reader(*got.file, a), expected_reader(*expected.file, b);
  const bool v_first = got.file->options().state_v_first;
  compare::Comparison comparison(fixture::leaf(name), a.shape, *a.dtype, v_first,
                                 comparison_options(request.judging, request.threads));
  compare_blocks(comparison, got_reader, expected_reader, request.limits);
  std::vector<compare::Limit> limits{{"nonfinite", 0, "exact"}};
  if (all_limit_requests(request.judging).empty()) limits.push_back({"max_ulp", 0, "exact"});
  compare::JudgeOptions options;
  options.zeros_decide = name.starts_with("inputs/");
  const compare::Measures measures = comparison.finish();
  report::TensorResult result =
      judged(name, a.shape, *a.dtype, v_first, measures, std::move(limits), request.judging, options);
  if (request.judging.profile) result.profile = profile_of(measures, comparison.take_series());
  if (a.dtype != b.dtype)
    result.reason +=
        fmt::format("{}{} against {}", result.reason.empty() ? "" : "; ", a.type_text, b.type_text);
  return result;
}

std::vector<std::string> option_differences(const Side& got, const Side& expected) {
  std::vector<std::string> lines;
  const std::string a = options_text(*got.file), b = options_text(*expected.file);
  if (a != b) lines.push_back(fmt::format("options differ: {} / {}", a, b));
  if (got.file->options().scale != expected.file->options().scale) lines.push_back("options differ: scale");
  if (got.file->options().lower_bound != expected.file->options().lower_bound)
    lines.push_back("options differ: lower_bound");
  if (got.file->cu_seqlens() != expected.file->cu_seqlens()) lines.push_back("inputs/cu_seqlens differs");
  return lines;
}

/// Only the oracle knows magnitudes.
void refuse_limits_on_magnitudes(const std::vector<compare::LimitRequest>& requests) {
  for (const compare::LimitRequest& request : requests)
    if (!request.none && compare::find_metric(request.metric)->needs_magnitude)
      throw Error(ErrorKind::usage,
                  fmt::format("--limit {}: diff runs no oracle and knows no magnitudes", request.metric), {},
                  "limit rms_ratio or max_ulp, or compare with kda-check run");
}

}  // namespace

report::Result diff(const DiffRequest& request, const Log& log) {
  refuse_limits_on_magnitudes(request.judging.limits);
  fixture::ReadLimits limits = request.limits;
  limits.whole_tensors = false;
  const Side got(request.got, limits), expected(request.expected, limits);
  for (const Side* const side : {&got, &expected})
    for (const std::string& warning : side->file->warnings())
      if (log.warning) log.warning(fmt::format("{} ({})", warning, side->file->path()));
  report::Result result;
  result.command = "diff";
  result.oracle = "none";
  report::FixtureResult described{
      got.file->name(), got.label(), shape_text(got.file->dimensions()), options_text(*got.file), {}};
  report::CaseResult item;
  item.fixture = got.file->name();
  item.path = got.label();
  item.variant = got.group.empty() ? got.file->name() : got.group;
  item.recorded = true;
  item.pass = "forward";
  item.dtype = item.compute = numeric::name_of(got.file->dtype());
  item.against = expected.label();

  std::vector<std::string> names = got.names;
  for (const std::string& name : expected.names)
    if (got.datasets.find(name) == got.datasets.end()) names.push_back(name);
  for (const std::string& name : names) {
    if (!selected(request.judging, name)) continue;
    const bool in_got = got.datasets.count(name) > 0, in_expected = expected.datasets.count(name) > 0;
    if (log.progress) log.progress(name);
    if (!in_got || !in_expected) {
      const Side& holder = in_got ? got : expected;
      item.tensors.push_back(undecided(name, holder.datasets.at(name).shape, Verdict::inconclusive,
                                       "only in " + holder.label()));
    } else if (same_place(got, expected)) {
      item.tensors.push_back(
          undecided(name, got.datasets.at(name).shape, Verdict::inconclusive, "compared with itself"));
    } else {
      item.tensors.push_back(compared_pair(got, expected, name, request));
    }
  }
  if (item.tensors.empty())
    throw Error(ErrorKind::usage,
                request.judging.tensors.empty() ? "the two hold no tensors"
                                                : "no tensor of that name: " + join(request.judging.tensors),
                got.label(), "kda-check show FILE lists them");
  conclude(item);
  described.notes = option_differences(got, expected);
  if (got.group.empty() && expected.group.empty() && !described.notes.empty()) {
    item.verdict = Verdict::fail;
    item.reason = described.notes.front();
  }
  result.fixtures.push_back(std::move(described));
  result.cases.push_back(std::move(item));
  return result;
}

}  // namespace kda_check::session

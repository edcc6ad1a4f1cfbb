#include "engine/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.hpp"
#include "base/names.hpp"
#include "engine/judged.hpp"
#include "fixture/tensor_reader.hpp"
#include "judge/measures/metrics.hpp"
#include "plan/source.hpp"
#include "plan/target.hpp"

namespace kda_check::engine {

namespace fs = std::filesystem;

namespace {

using fixture::DatasetInfo;
using fixture::Fixture;
using judge::Verdict;

/// "FILE" or "FILE:GROUP"; names of both may hold colons: the longest that is a file is one.
struct FileAndGroup {
  explicit FileAndGroup(const std::string& text) : path(text) {
    std::error_code failure;
    for (std::size_t colon = text.size();
         !fs::exists(path, failure) && colon != 0 && colon != std::string::npos;) {
      colon = text.rfind(':', colon - 1);
      if (colon == std::string::npos) break;
      path = text.substr(0, colon), group = text.substr(colon + 1);
    }
    if (!fs::exists(path, failure)) path = text.substr(0, text.rfind(':')), group = {};
  }
  std::string path, group;
};

/// One side: a file, or one expected group of it.
struct Side {
  Side(const FileAndGroup& place, const fixture::ReadLimits& limits)
      : file(Fixture::open(place.path, limits)), group(place.group) {
    if (!group.empty() && file.expected_named(group) == nullptr) {
      std::vector<std::string> groups;
      for (const fixture::ExpectedGroup& candidate : file.expected()) groups.push_back(candidate.name);
      throw Error(ErrorKind::usage, fmt::format("no group expected/{}", group), place.path,
                  suggest(group, groups));
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
      const fixture::ExpectedGroup& chosen = *file.expected_named(group);
      const std::size_t prefix = ("/expected/" + group + "/").size();
      take(chosen.tensors, prefix);
      take(chosen.stages, prefix);
      return;
    }
    take(file.inputs(), 1);
    for (const fixture::ExpectedGroup& answers : file.expected()) {
      take(answers.tensors, 1);
      take(answers.stages, 1);
    }
  }

  std::string label() const { return group.empty() ? file.path() : file.path() + ":" + group; }

  Fixture file;
  std::string group;
  std::vector<std::string> names;
  std::map<std::string, DatasetInfo> datasets;
};

bool same_place(const Side& a, const Side& b) {
  std::error_code failure;
  return a.group == b.group && fs::equivalent(a.file.path(), b.file.path(), failure);
}

bool selected(const plan::Names& tensors, const std::string& name) {
  if (tensors.empty()) return true;
  return std::any_of(tensors.begin(), tensors.end(), [&](const std::string& wanted) {
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

judge::ElementSource source_of(const fixture::TensorReader& reader) {
  return [&reader](std::size_t begin, std::size_t count, std::byte* room) {
    return reader.elements(begin, count, room);
  };
}

/// Reads both tensors once, block by block.
void compare_blocks(judge::Comparison& comparison, fixture::TensorReader& got,
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

bool has_limits(const plan::Judging& judging) {
  return !judging.limits.empty() || judging.atol || judging.rtol;
}

std::vector<judge::Limit> limits_of(const plan::Judging& judging) {
  std::vector<judge::LimitLayer> layers = judging.limits;
  if (judging.atol || judging.rtol)
    layers.push_back({judging.allclose_source, {{"allclose", 0, false, false}}});
  std::vector<judge::Limit> limits{{"nonfinite", 0, "exact"}};
  if (!has_limits(judging))
    limits.insert(limits.end(), {{"max_ulp", 0, "exact"}, {"differing_bits", 0, "exact"}});
  return judge::overlaid(std::move(limits), layers);
}

report::TensorResult compared_pair(const Side& got, const Side& reference, const std::string& name,
                                   const DiffRequest& request) {
  const DatasetInfo &a = got.datasets.at(name), &b = reference.datasets.at(name);
  if (a.shape != b.shape)
    return undecided(name, a.shape, Verdict::fail,
                     fmt::format("is {} but was {}", tensor::to_string(a.shape), tensor::to_string(b.shape)));
  for (const judge::LimitLayer& layer : request.judging.limits)
    judge::refuse_limits_finer_than_storage(layer.requests, request.judging.atol.value_or(0),
                                            request.judging.rtol.value_or(0), *a.dtype);
  fixture::TensorReader got_reader(got.file, a), reference_reader(reference.file, b);
  const bool v_first = got.file.options().state_v_first;
  const bool same_type = a.dtype == b.dtype;
  judge::ComparisonOptions counted = comparison_options(request.judging, request.threads, request.draw);
  counted.nan_bits = same_type;
  judge::Comparison comparison(fixture::leaf(name), a.shape, *a.dtype, v_first, counted);
  compare_blocks(comparison, got_reader, reference_reader, request.limits);
  judge::Evidence options;
  options.zeros_decide = name.starts_with("inputs/");
  const judge::Measures measures = comparison.finish();
  report::TensorResult result = judged({name, a.shape, *a.dtype, v_first}, measures,
                                       limits_of(request.judging), request.judging.worst_or_usual(), options);
  if (request.draw) result.profile = report::profile_of(measures, comparison.take_series());
  if (!same_type) {
    // What was expected is rounded to the type of what is judged: what that loses is in no metric.
    if (!has_limits(request.judging)) result.verdict = Verdict::fail;
    const std::string types = fmt::format("element type is {} but was {}", a.type_text, b.type_text);
    result.reason = result.reason.empty() ? types : types + "; " + result.reason;
  }
  return result;
}

/// What differs beside the tensors.
std::vector<std::string> other_differences(const Side& got, const Side& reference) {
  std::vector<std::string> lines;
  const std::string a = plan::options_text(got.file.header().outline()),
                    b = plan::options_text(reference.file.header().outline());
  if (a != b) lines.push_back(fmt::format("options differ: {} / {}", a, b));
  if (got.file.options().scale != reference.file.options().scale) lines.push_back("options differ: scale");
  if (got.file.options().lower_bound != reference.file.options().lower_bound)
    lines.push_back("options differ: lower_bound");
  if (got.file.cu_seqlens() != reference.file.cu_seqlens()) lines.push_back("inputs/cu_seqlens differs");
  for (const fixture::ExpectedGroup& mine : got.file.expected()) {
    const std::string theirs_named = got.group.empty() ? mine.name : reference.group;
    const fixture::ExpectedGroup* const theirs = reference.file.expected_named(theirs_named);
    if (theirs == nullptr || (!got.group.empty() && mine.name != got.group)) continue;
    const auto compute = [](const fixture::ExpectedGroup& group) {
      return group.compute ? std::string(numeric::row_of(*group.compute).name) : std::string("not said");
    };
    if (mine.compute != theirs->compute)
      lines.push_back(
          fmt::format("expected/{}: compute differs: {} / {}", mine.name, compute(mine), compute(*theirs)));
    if (mine.natural_g_cumsum != theirs->natural_g_cumsum && !mine.stages.empty() && !theirs->stages.empty())
      lines.push_back(fmt::format("expected/{}: g_cumsum_base differs: {} / {}", mine.name,
                                  mine.natural_g_cumsum ? "e" : "2", theirs->natural_g_cumsum ? "e" : "2"));
  }
  return lines;
}

/// Only the oracle knows magnitudes, and only it has twins.
void refuse_limits_on_magnitudes(const plan::Judging& judging) {
  for (const judge::LimitLayer& layer : judging.limits)
    for (const judge::LimitRequest& request : layer.requests)
      if (!request.none && judge::find_metric(request.metric)->needs != judge::Needs::nothing)
        throw Error(ErrorKind::usage,
                    fmt::format("--limit {}: diff runs no oracle and knows neither magnitudes nor twins",
                                request.metric),
                    {}, "limit rms_ratio or max_ulp, or compare with kda-check run");
}

using Tell = std::function<void(const std::string&)>;

/// Two files, or groups of them.
void compare_files(const FileAndGroup& reference_place, const FileAndGroup& got_place,
                   const DiffRequest& request, const Tell& warning, const Tell& progress,
                   report::Document& document) {
  fixture::ReadLimits limits = request.limits;
  limits.whole_tensors = false;
  const Side reference(reference_place, limits), got(got_place, limits);
  for (const Side* const side : {&reference, &got})
    for (const std::string& text : side->file.warnings())
      if (warning) warning(fmt::format("{} ({})", text, side->file.path()));
  report::ProblemResult described{got.file.name(),
                                  got.label(),
                                  plan::shape_text(got.file.dimensions()),
                                  plan::options_text(got.file.header().outline()),
                                  {}};
  report::CaseResult item;
  item.fixture = got.file.name();
  item.path = got.label();
  item.variant = got.group.empty() ? got.file.name() : got.group;
  item.role = report::Role::recorded;
  item.pass = "forward";
  item.dtype = item.compute = numeric::name_of(got.file.dtype());
  item.against = reference.label();

  std::vector<std::string> names = got.names;
  for (const std::string& name : reference.names)
    if (!got.datasets.contains(name)) names.push_back(name);
  for (const std::string& name : names) {
    if (!selected(request.tensors, name)) continue;
    const bool in_got = got.datasets.contains(name), in_reference = reference.datasets.contains(name);
    if (progress) progress(name);
    if (!in_got || !in_reference) {
      const Side& holder = in_got ? got : reference;
      item.tensors.push_back(undecided(name, holder.datasets.at(name).shape, Verdict::inconclusive,
                                       "only in " + holder.label()));
    } else if (same_place(got, reference)) {
      item.tensors.push_back(
          undecided(name, got.datasets.at(name).shape, Verdict::inconclusive, "compared with itself"));
    } else {
      item.tensors.push_back(compared_pair(got, reference, name, request));
    }
  }
  if (item.tensors.empty())
    throw Error(ErrorKind::usage,
                request.tensors.empty() ? "the two hold no tensors"
                                        : "no tensor of that name: " + join(request.tensors),
                got.label(), "kda-check show FILE lists them");
  conclude(item);
  described.notes = other_differences(got, reference);
  if (got.group.empty() && reference.group.empty() && !described.notes.empty()) {
    item.verdict = Verdict::fail;
    item.reason = described.notes.front();
  }
  document.problems.push_back(std::move(described));
  document.cases.push_back(std::move(item));
}

/// A file that only one of two folders has.
void add_lonely(const plan::Target& target, const std::string& holder, report::Document& document) {
  report::CaseResult item;
  item.fixture = item.variant = target.name, item.path = target.path, item.role = report::Role::recorded;
  item.against = "the other folder", item.verdict = Verdict::fail, item.reason = "only in " + holder;
  document.problems.push_back({target.name, target.path, {}, {}, {}});
  document.cases.push_back(std::move(item));
}

void guarded(const std::string& path, report::Document& document, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
    document.failures.push_back({error.what(), exit_code(error.kind()), path});
  }
}

}  // namespace

void diff(const DiffRequest& request, report::Document& document, const Tell& warning, const Tell& progress) {
  refuse_limits_on_magnitudes(request.judging);
  document.judges = true;
  std::error_code failure;
  const bool folders = fs::is_directory(request.got, failure);
  if (folders != fs::is_directory(request.reference, failure))
    throw Error(ErrorKind::usage, "one of the two is a folder and the other is not", {},
                "two files, or two folders whose files have the same names");
  if (!folders) {
    guarded(request.got, document, [&] {
      compare_files(FileAndGroup(request.reference), FileAndGroup(request.got), request, warning, progress,
                    document);
    });
    return;
  }
  std::map<std::string, plan::Target> before, after;
  const auto below = [](const std::string& folder, std::map<std::string, plan::Target>& files) {
    for (plan::Target& target : plan::expanded(folder))
      files.emplace(fs::path(target.path).lexically_relative(folder).string(), target);
  };
  below(request.reference, before);
  below(request.got, after);
  for (const auto& [name, target] : before)
    if (!after.contains(name)) add_lonely(target, request.reference, document);
  for (const auto& item : after) {
    const plan::Target& target = item.second;
    const auto partner = before.find(item.first);
    if (partner == before.end())
      add_lonely(target, request.got, document);
    else
      guarded(target.path, document, [&] {
        compare_files(FileAndGroup(partner->second.path), FileAndGroup(target.path), request, warning,
                      progress, document);
      });
  }
}

}  // namespace kda_check::engine

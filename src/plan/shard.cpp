#include "plan/shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <string_view>

#include "base/error.hpp"

namespace kda_check::plan {

namespace {

std::optional<std::size_t> number(std::string_view text) {
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Two variables of a scheduler: which one of how many.
struct Place {
  const char *index, *count;
  std::size_t first;  ///< the least index
};
/// Jobs, each of which may have several ranks.
constexpr Place jobs[] = {
    {"CI_NODE_INDEX", "CI_NODE_TOTAL", 1},            // GitLab, parallel:
    {"STRATEGY_JOB_INDEX", "STRATEGY_JOB_TOTAL", 0},  // GitHub, as docs/ci.md hands them over
};
constexpr Place ranks[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", 0},  // OpenMPI
    {"PMI_RANK", "PMI_SIZE", 0},                          // MPICH and those that come from it
    {"SLURM_PROCID", "SLURM_NTASKS", 0},                  // srun
};

using Lookup = std::function<const char*(const char*)>;

std::optional<Shard> read(const Place& place, const Lookup& variable) {
  const char *const index_text = variable(place.index), *const count_text = variable(place.count);
  if (index_text == nullptr || count_text == nullptr) return std::nullopt;
  const auto index = number(index_text), count = number(count_text);
  if (!index || !count || *index < place.first || *index - place.first >= *count)
    throw Error(ErrorKind::usage, fmt::format("--shard auto: {}={} and {}={} are no part of a whole",
                                              place.index, index_text, place.count, count_text));
  return Shard{*index - place.first + 1, *count, place.index};
}

/// Slurm numbers the tasks of an array as the user likes: "--array=10-40:10".
std::optional<Shard> slurm_array(const Lookup& variable) {
  const auto get = [&](const char* name) {
    const char* const text = variable(name);
    return text == nullptr ? std::nullopt : number(text);
  };
  const auto id = get("SLURM_ARRAY_TASK_ID");
  if (!id) return std::nullopt;
  const auto least = get("SLURM_ARRAY_TASK_MIN"), count = get("SLURM_ARRAY_TASK_COUNT");
  const std::size_t step = get("SLURM_ARRAY_TASK_STEP").value_or(1);
  const bool is_in_step = least && *id >= *least && step > 0 && (*id - *least) % step == 0;
  const std::size_t index = is_in_step ? (*id - *least) / step : 0;
  if (!is_in_step || !count || index >= *count)
    throw Error(ErrorKind::usage, "--shard auto: SLURM_ARRAY_TASK_ID is no part of an evenly spaced array",
                {}, "submit with --array=1-N, or give --shard I/N");
  return Shard{index + 1, *count, "SLURM_ARRAY_TASK_ID"};
}

template <class Places>
std::optional<Shard> first_of(const Places& places, const Lookup& variable) {
  for (const Place& place : places)
    if (auto shard = read(place, variable)) return shard;
  return std::nullopt;
}

}  // namespace

std::string Shard::text() const { return fmt::format("{}/{}", index, count); }

std::optional<Shard> shard_from(const Lookup& variable) {
  std::optional<Shard> job = slurm_array(variable);
  if (!job) job = first_of(jobs, variable);
  const std::optional<Shard> rank = first_of(ranks, variable);
  if (!job || !rank || rank->is_whole()) return job ? job : rank;
  return Shard{(job->index - 1) * rank->count + rank->index, job->count * rank->count,
               job->source + " and " + rank->source};
}

Shard shard_named(const std::string& text) {
  if (text == "auto") {
    if (auto shard = shard_from([](const char* name) { return std::getenv(name); })) return *shard;
    throw Error(ErrorKind::usage, "--shard auto: no scheduler says which part this is", {},
                "Slurm arrays, MPI ranks, GitLab's parallel and GitHub's matrix do (docs/ci.md); or --shard "
                "I/N");
  }
  const std::string_view words = text;
  const std::size_t slash = std::min(words.find('/'), words.size());
  const auto index = number(words.substr(0, slash)),
             count = number(words.substr(std::min(slash + 1, words.size())));
  if (!index || !count || *index < 1 || *index > *count)
    throw Error(ErrorKind::usage, fmt::format("--shard {}: not I/N with 1 <= I <= N, e.g. 2/4", text));
  return {*index, *count, {}};
}

std::vector<std::size_t> balanced(const std::vector<double>& costs, std::size_t parts) {
  std::vector<std::size_t> order(costs.size()), part(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> loads(parts);
  for (const std::size_t item : order) {
    part[item] = static_cast<std::size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
    loads[part[item]] += costs[item];
  }
  return part;
}

}  // namespace kda_check::plan

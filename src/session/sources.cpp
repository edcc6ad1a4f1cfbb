#include "session/sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::session {

namespace {

bool exists(const std::string& path) {
  std::error_code failure;
  return std::filesystem::exists(path, failure);
}

/// Letters, digits and underscores up to the end or a colon: no file one would have.
bool looks_like_a_regime(const std::string& target) {
  const std::string name = target.substr(0, target.find(':'));
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_';
  });
}

[[noreturn]] void neither(const std::string& target) {
  std::vector<std::string> names;
  for (const kda::Recipe& recipe : kda::recipes()) names.emplace_back(recipe.name);
  const std::string name = target.substr(0, target.find(':'));
  std::string hint = suggest(name, names);
  if (!hint.starts_with("did")) hint = "kda-check list regimes";
  throw Error(ErrorKind::usage, fmt::format("'{}' is neither a file nor a regime", target), {}, hint);
}

}  // namespace

bool is_regime(const std::string& target) { return kda::names_recipe(target) && !exists(target); }

kda::Problem build_regime(const kda::RegimeRequest& regime, const fixture::ReadLimits& limits) {
  constexpr double mebibyte = 1 << 20;
  if (regime.bytes() > limits.memory_budget)
    throw Error(ErrorKind::input,
                fmt::format("{} needs {:.0f} MiB; the memory budget is {:.0f} MiB", regime.text,
                            static_cast<double>(regime.bytes()) / mebibyte,
                            static_cast<double>(limits.memory_budget) / mebibyte),
                {}, "raise it with --memory-limit");
  return regime.build();
}

Source Source::open(const std::string& target, const fixture::ReadLimits& limits) {
  Source source;
  source.path_ = target;
  if (is_regime(target)) {
    const kda::RegimeRequest regime = kda::parse_regime(target);
    kda::Problem& problem = source.built_.emplace(build_regime(regime, limits));
    source.name_ = target;
    source.description_ = regime.recipe->summary;
    source.options_ = problem.options;
    source.dimensions_ = problem.dimensions();
    source.dtype_ = problem.dtype();
    source.has_initial_state_ = problem.initial_state.has_value();
    source.packed_ = problem.packed();
    return source;
  }
  if (target.starts_with("@") && !exists(target))
    throw Error(ErrorKind::usage, fmt::format("'{}': suites are for run", target), {},
                fmt::format("kda-check run {}", target));
  if (looks_like_a_regime(target) && !exists(target)) neither(target);
  const fixture::Fixture& file = source.file_.emplace(fixture::Fixture::open(target, limits));
  source.name_ = file.name();
  source.description_ = file.description();
  source.options_ = file.options();
  source.dimensions_ = file.dimensions();
  source.dtype_ = file.dtype();
  source.has_initial_state_ = file.input("initial_state") != nullptr;
  source.packed_ = !file.cu_seqlens().empty();
  source.warnings_ = file.warnings();
  source.expected_ = file.expected();
  return source;
}

const fixture::ExpectedGroup* Source::expected_named(std::string_view group) const {
  for (const fixture::ExpectedGroup& candidate : expected_)
    if (candidate.name == group) return &candidate;
  return nullptr;
}

kda::Problem Source::take_problem() { return built_ ? *std::exchange(built_, {}) : file_->read_problem(); }

}  // namespace kda_check::session

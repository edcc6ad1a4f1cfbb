#include "plan/source.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/append.hpp"
#include "base/error.hpp"
#include "kda/terms/option_flags.hpp"

namespace kda_check::plan {

namespace {

void check_memory(const kda::RegimeRequest& regime, const fixture::ReadLimits& limits) {
  constexpr double mebibyte = 1 << 20;
  if (regime.bytes() > limits.memory_budget)
    throw Error(ErrorKind::input,
                fmt::format("{} needs {:.0f} MiB; the memory budget is {:.0f} MiB", regime.text,
                            static_cast<double>(regime.bytes()) / mebibyte,
                            static_cast<double>(limits.memory_budget) / mebibyte),
                {}, "raise it with --memory-limit");
}

}  // namespace

kda::Problem build_regime(const kda::RegimeRequest& regime, const fixture::ReadLimits& limits) {
  check_memory(regime, limits);
  return regime.build();
}

Source Source::look(const Target& target, const fixture::ReadLimits& limits) {
  Source source;
  source.target_ = target;
  if (target.is_regime) {
    source.regime_ = kda::parse_regime(target.path);
    check_memory(*source.regime_, limits);  // some of it is drawn to know its outline
    source.name_ = target.name;
    source.description_ = source.regime_->recipe->summary;
    source.outline_ = source.regime_->outline();
    source.bytes_ = source.regime_->bytes();
    source.made_ = MadeOutput::of(*source.regime_, source.outline_);
    if (source.made_) source.expected_.push_back(source.made_->group());
    return source;
  }
  const fixture::Header header = fixture::read_header(target.path, limits);
  source.identity_ = header.identity;
  source.fingerprint_ = kda_check::fingerprint(target.path);
  source.name_ = header.name;
  source.description_ = header.description;
  source.outline_ = header.outline();
  source.warnings_ = header.warnings;
  source.expected_ = header.expected;
  for (const fixture::DatasetInfo& info : header.inputs) source.bytes_ += info.bytes();
  return source;
}

const fixture::ExpectedGroup* Source::expected_named(std::string_view group) const {
  for (const fixture::ExpectedGroup& candidate : expected_)
    if (candidate.name == group) return &candidate;
  return nullptr;
}

Source::Opened Source::open(const fixture::ReadLimits& limits) const {
  Opened opened;
  if (regime_) {
    opened.built_ = build_regime(*regime_, limits);
    if (made_) opened.made_ = made_->computed(*opened.built_, limits.threads);
    return opened;
  }
  opened.file_.emplace(fixture::Fixture::open(target_.path, limits, identity_));
  return opened;
}

kda::Problem Source::Opened::take_problem() {
  return built_ ? *std::exchange(built_, {}) : file_->read_problem();
}

std::string shape_text(const kda::Dimensions& d) {
  std::string text = fmt::format("B={} T={} H={}", d.B, d.T, d.H);
  if (d.HV != d.H) text += fmt::format(" HV={}", d.HV);
  text += fmt::format(" K={} V={}", d.K, d.V);
  if (d.N != d.B) text += fmt::format(" N={}", d.N);
  return text;
}

std::string options_text(const kda::Outline& outline) {
  const kda::Options& options = outline.options;
  std::string text = fmt::format("{} gate={}", numeric::name_of(outline.dtype()), kda::name_of(options.gate));
  if (options.gate == kda::Gate::lower_bound) append(text, "({:g})", *options.lower_bound);
  for (const auto& [name, member] : kda::option_flags)
    if (options.*member) text += fmt::format(" {}", name);
  if (outline.dimensions.has_scalar_decay) text += " g-for-all-K";
  if (outline.dimensions.strength == kda::Strength::value) text += " beta-by-column";
  if (outline.dimensions.strength == kda::Strength::gates) text += " erase-write";
  if (outline.has_pool) return text + fmt::format(" state_pool chunk={}", options.chunk_size);
  if (outline.has("initial_state")) text += " initial_state";
  if (outline.packed()) text += " packed";
  return text + fmt::format(" chunk={}", options.chunk_size);
}

}  // namespace kda_check::plan

#include "session/replay.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "session/selection.hpp"

namespace kda_check::session {

const kda::Variant& on_cpu(const kda::Variant& variant) {
  return variant.replay.empty() ? variant : kda::variant_named(variant.replay);
}

std::string why_no_replay(const kda::Variant& variant, const kda::Problem& problem,
                          const kda::RunOptions& options) {
  if (variant.replay.empty()) return {};
  if (options.dtype == numeric::DType::fp64)
    return "no replay in fp64: the exponential of CUDA is not that of the C library";
  const std::string reason = why_not(on_cpu(variant), problem, options);
  return reason.empty() ? reason : "no replay: " + reason;
}

Replays replays_of(const kda::Problem& problem, const std::vector<Computed>& computed, const Log& log) {
  Replays replays;
  replays.answers.reserve(computed.size());  // pairings point into it
  for (const Computed& item : computed) {
    if (item.variant->replay.empty()) continue;
    if (std::string reason = why_no_replay(*item.variant, problem, item.options); !reason.empty()) {
      replays.without.emplace_back(&item, std::move(reason));
      continue;
    }
    if (log.progress)
      log.progress(fmt::format("replay of {} {}", item.variant->name, numeric::name_of(item.options.dtype)));
    const kda::Variant& replay = on_cpu(*item.variant);
    Answered& answer = replays.answers.emplace_back(
        computed_answer(replay, item.options, replay.run(problem, item.options)));
    answer.name = replay_name;
    replays.pairings.push_back({.got = &item.answer, .expected = &answer, .same_bits = true});
  }
  return replays;
}

void require_replays(const std::vector<const kda::Variant*>& selected,
                     std::span<const kda::Variant> registry) {
  if (std::any_of(selected.begin(), selected.end(), [](const auto* v) { return !v->replay.empty(); })) return;
  std::string hint = "only GPU variants have a replay";
  for (const kda::Variant& variant : registry)
    if (const std::string reason = variant.unavailable(); !variant.replay.empty() && !reason.empty())
      hint = fmt::format("{} cannot run here: {}", variant.name, reason);
  throw Error(ErrorKind::usage, "--against replay: no GPU variant is selected", {}, hint);
}

}  // namespace kda_check::session

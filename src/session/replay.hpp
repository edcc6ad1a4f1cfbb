// GPU variants and the CPU variants that give the same bits in the same arithmetic: what `run --against
// replay` compares, and how `attribute` and `--stages` take a GPU variant apart.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "session/answers.hpp"

namespace kda_check::session {

/// What --against and reports call the answer of a replay. No recorded group has this name
/// (fixture/reader.cpp).
inline constexpr char replay_name[] = "replay";

/// The variant that gives the bits of `variant` on the CPU, in any arithmetic: itself, or its replay.
const kda::Variant& on_cpu(const kda::Variant& variant);

/// Why no run on the CPU gives the bits of this run of a GPU variant; empty when one does, and for variants
/// of the CPU.
std::string why_no_replay(const kda::Variant& variant, const kda::Problem& problem,
                          const kda::RunOptions& options);

/// An answer computed here, and how.
struct Computed {
  const kda::Variant* variant;
  kda::RunOptions options;
  Answered answer;
};

/// The GPU answers among `computed` beside what their replays answer. The pairings point into `computed` and
/// `answers`.
struct Replays {
  std::vector<Answered> answers;
  std::vector<Pairing> pairings;
  std::vector<std::pair<const Computed*, std::string>> without;  ///< GPU answers that have none, and why
};
Replays replays_of(const kda::Problem& problem, const std::vector<Computed>& computed, const Log& log);

/// Throws Error{usage} when none of the selected variants has a replay.
void require_replays(const std::vector<const kda::Variant*>& selected,
                     std::span<const kda::Variant> registry);

}  // namespace kda_check::session

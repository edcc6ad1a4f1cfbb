// The two passes through a problem, for commands that follow tensors of either: what each yields, by name,
// how a variant runs it, and its truth.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/attribution.hpp"
#include "session/answers.hpp"

namespace kda_check::session {

enum class Pass : unsigned char { forward, backward };
std::string_view name_of(Pass pass);

/// Tensors of one pass, in the order of reports.
struct PassTensors {
  Pass pass;
  std::vector<std::string> tensors;
};

/// o and final_state; the gradients.
std::vector<PassTensors> every_pass();

/// What --tensor and --backward select of `known`, which has one entry for each pass, forwards first. Without
/// names: all of one pass. Throws Error{usage} for names that are not in `known`, and for tensors of the
/// forward pass with --backward.
std::vector<PassTensors> selected_passes(std::string_view command, const std::vector<std::string>& names,
                                         bool backward, const std::vector<PassTensors>& known);

/// Those that a problem has: a gradient exists where there is a loss (do, dht), and its input.
std::vector<std::string> tensors_here(const PassTensors& wanted, const kda::Problem& problem);

/// "no backward pass"; empty for a variant that has the pass.
std::string why_no_pass(Pass pass, const kda::Variant& variant);

/// Notes of both passes may be the same: each is kept once.
void note_once(std::vector<std::string>& notes, std::string note);

/// A variant that has the pass, run once.
Answered run_pass(Pass pass, const kda::Variant& variant, const kda::Problem& problem,
                  const kda::RunOptions& options);

/// The exact values of all tensors of a pass. Throws Error{input} when those of the gradients take more
/// memory than `budget` bytes.
analysis::HeldOracle hold_pass(Pass pass, const kda::Problem& problem, std::size_t chunk_size, int threads,
                               std::size_t budget);

}  // namespace kda_check::session

#include "kda/head/launch_choices.hpp"

#include <span>

namespace kda_check::kda {

namespace {

/// Calls visit(part of the launch, its choices, what an open part is) for the parts that have choices.
template <class Visit>
void over_parts(Launch& launch, const LaunchChoices& choices, Visit visit) {
  const auto part = [&](auto& of_launch, const auto& of_choices, const auto& open) {
    if (!of_choices.empty()) visit(of_launch, of_choices.front(), open);
  };
  part(launch.norm, choices.norm, RowLayout{});
  part(launch.pairs, choices.pairs, RowLayout{});
  part(launch.substitution, choices.substitution, RowLayout{});
  part(launch.scan_rows, choices.scan_rows, std::size_t{0});
  part(launch.wy, choices.wy, WyBlock{});
  part(launch.intra_warps, choices.intra_warps, std::size_t{0});
  part(launch.reverse_scan_rows, choices.reverse_scan_rows, std::size_t{0});
  part(launch.norm_gradient, choices.norm_gradient, RowLayout{});
  part(launch.gate_warps, choices.gate_warps, std::size_t{0});
}

template <class Value>
std::vector<Value> all_of(std::span<const Value> values) {
  return {values.begin(), values.end()};
}

}  // namespace

bool has_sums_by_pairs(DecayForm form) { return is_pairwise(form) || form == DecayForm::anchor_pair; }

LaunchChoices launch_choices(const Outline& problem, const Arithmetic& arithmetic, Pass pass) {
  LaunchChoices choices;
  const std::size_t K = problem.dimensions.K;
  const numeric::DType stored = problem.dtype();
  const bool by_triton = is_triton(arithmetic.reduction);
  if (problem.options.qk_l2norm) {
    if (by_triton) choices.norm = norm_layouts(K, stored);
    if (is_by_lanes(arithmetic.reduction)) choices.norm = {lane_layout(K)};
  }
  if (!by_triton) return choices;
  if (has_sums_by_pairs(arithmetic.decay)) choices.pairs = pair_layouts(K, stored);
  choices.substitution = substitution_layouts(stored, arithmetic.decay == DecayForm::anchor_pair);
  choices.scan_rows = all_of(scan_rows());
  if (pass == Pass::forward) return choices;
  choices.wy = all_of(wy_blocks());
  choices.intra_warps = all_of(intra_warps()), choices.reverse_scan_rows = all_of(scan_rows());
  if (problem.options.qk_l2norm) choices.norm_gradient = norm_layouts(K, stored);
  if (problem.options.gate != Gate::none) choices.gate_warps = all_of(gate_warps());
  return choices;
}

Launch filled_in(Launch launch, const LaunchChoices& choices) {
  over_parts(launch, choices, [](auto& part, const auto& first, const auto& open) {
    if (part == open) part = first;
  });
  return launch;
}

Launch launch_in(const Outline& problem, const Arithmetic& arithmetic, Pass pass) {
  return filled_in(arithmetic.launch, launch_choices(problem, arithmetic, pass));
}

Launch left_open(Launch launch, const LaunchChoices& choices) {
  over_parts(launch, choices, [](auto& part, const auto& first, const auto& open) {
    if (part == first) part = open;
  });
  return launch;
}

}  // namespace kda_check::kda

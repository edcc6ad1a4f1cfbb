// The words of --arithmetic that code on a GPU has, emulations included.
#pragma once

#include <string_view>

#include "kda/arithmetic/arithmetic.hpp"

namespace kda_check::kda {

/// Where it rounds.
inline constexpr CastPointRow::Point cast_points_on_gpu[] = {&CastPoints::normalised,
                                                             &CastPoints::decay,
                                                             &CastPoints::g_cumsum,
                                                             &CastPoints::exponentials,
                                                             &CastPoints::score_operands,
                                                             &CastPoints::Aqk,
                                                             &CastPoints::L,
                                                             &CastPoints::inverse_operands,
                                                             &CastPoints::Akk_inv,
                                                             &CastPoints::beta_key,
                                                             &CastPoints::operands,
                                                             &CastPoints::w,
                                                             &CastPoints::u,
                                                             &CastPoints::prediction,
                                                             &CastPoints::v_new,
                                                             &CastPoints::state,
                                                             &CastPoints::carry,
                                                             &CastPoints::transition,
                                                             &CastPoints::segment_state,
                                                             &CastPoints::dv_local,
                                                             &CastPoints::dv,
                                                             &CastPoints::dh,
                                                             &CastPoints::dw,
                                                             &CastPoints::dA,
                                                             &CastPoints::state_product};

constexpr bool rounds_on_gpu(CastPoints casts) {
  for (const CastPointRow::Point point : cast_points_on_gpu) casts.*point = Rounding::none;
  return casts == CastPoints{};
}

constexpr bool has_on_gpu(const Reduction& reduction) {
  switch (reduction.kind) {
    case ReductionKind::sequential:
    case ReductionKind::pairwise:
    case ReductionKind::blocks:
    case ReductionKind::mma:
    case ReductionKind::simt:
    case ReductionKind::exact:
      return true;
    case ReductionKind::tree:
      return static_cast<std::size_t>(reduction.width) <= widest_tree_on_gpu;
    default:
      return false;
  }
}

/// The key of a word that no code on a GPU has; empty without one. A value is a CPU's alone until it is named
/// here. `casts`: where the computation rounds.
constexpr std::string_view cpu_only_key(const Arithmetic& arithmetic, const CastPoints& casts) {
  // By name: an axis that is added does not compile before it stands here.
  const auto& [contraction, exponential, special, subnormals, reduction, storage, named_casts, decay,
               anchor_rows, clamp, inverse, inverse_rows, merge, merge_rows, accumulator, tail, gates, update,
               delta, beta, scale, heads, output, readout, segments, stored, launch] = arithmetic;
  constexpr auto is_one_of = [](const auto& value, const auto&... known) {
    return ((value == known) || ...);
  };
  if (!is_one_of(contraction, Contraction::separate, Contraction::fused)) return "contraction";
  if (!is_one_of(exponential, Exponential::exact, Exponential::cuda, Exponential::cuda_fast,
                 Exponential::exp2_scaled, Exponential::flush))
    return "exponential";
  if (!is_one_of(special, Special::ieee)) return "special";
  if (!is_one_of(subnormals, Subnormals::gradual)) return "subnormals";
  if (!has_on_gpu(reduction)) return "reduction";
  if (!rounds_on_gpu(casts)) return "storage";
  if (!is_one_of(decay, DecayForm::pair, DecayForm::pair_late, DecayForm::anchor_pair,
                 DecayForm::anchor_first, DecayForm::anchor_mid, DecayForm::factored, DecayForm::clamp))
    return "decay";
  if (!is_one_of(inverse, InverseForm::substitution, InverseForm::blocks, InverseForm::doubling,
                 InverseForm::horner))
    return "inverse";
  if (!is_one_of(merge, Merge::nearest)) return "merge";
  if (!is_one_of(accumulator, Accumulator::fp32)) return "accumulator";
  if (!is_one_of(tail, TailForm::difference, TailForm::suffix)) return "tail";
  if (!is_one_of(gates, Gates::natural)) return "gates";
  if (!is_one_of(update, Update::chained)) return "update";
  if (!is_one_of(delta, Delta::wy)) return "delta";
  if (!is_one_of(beta, BetaPart::rows)) return "beta";
  if (!is_one_of(scale, ScaledPart::scores)) return "scale";
  if (!is_one_of(heads, Heads::grouped)) return "heads";
  if (!is_one_of(output, Output::chained)) return "output";
  if (!is_one_of(readout, Readout::start)) return "readout";
  if (!is_one_of(segments.merge, SegmentMerge::none)) return "segments";
  if (!is_one_of(stored, StoredState{})) return "stored";
  return {};
}

}  // namespace kda_check::kda

#include "kda/arithmetic/cast_points.hpp"

#include <algorithm>
#include <iterator>

namespace kda_check::kda {

namespace {

constexpr CastPointRow point_rows[] = {
    {.name = "normalised", .point = &CastPoints::normalised},
    {.name = "g", .point = &CastPoints::gate, .in_token_forms = true},
    {.name = "beta", .point = &CastPoints::beta, .in_token_forms = true},
    {.name = "decay", .point = &CastPoints::decay, .in_token_forms = true, .in_chunk_form = true},
    {.name = "g_cumsum", .point = &CastPoints::g_cumsum, .in_chunk_form = true},
    {.name = "exponentials", .point = &CastPoints::exponentials, .in_chunk_form = true},
    {.name = "score_operands",
     .point = &CastPoints::score_operands,
     .in_chunk_form = true,
     .is_operand = true},
    {.name = "off_diagonal", .point = &CastPoints::off_diagonal, .in_chunk_form = true},
    {.name = "scores", .point = &CastPoints::scores, .in_chunk_form = true},
    {.name = "Aqk", .point = &CastPoints::Aqk, .in_chunk_form = true, .is_operand = true},
    {.name = "L", .point = &CastPoints::L, .in_chunk_form = true},
    {.name = "inverse_operands",
     .point = &CastPoints::inverse_operands,
     .in_chunk_form = true,
     .is_operand = true},
    {.name = "Akk_inv", .point = &CastPoints::Akk_inv, .in_chunk_form = true, .is_operand = true},
    {.name = "beta_key", .point = &CastPoints::beta_key, .in_chunk_form = true},
    {.name = "operands", .point = &CastPoints::operands, .in_chunk_form = true, .is_operand = true},
    {.name = "kg", .point = &CastPoints::kg, .in_chunk_form = true},
    {.name = "w", .point = &CastPoints::w, .in_chunk_form = true, .is_operand = true},
    {.name = "u", .point = &CastPoints::u, .in_chunk_form = true},
    {.name = "prediction", .point = &CastPoints::prediction, .in_token_forms = true, .in_chunk_form = true},
    {.name = "residual", .point = &CastPoints::residual, .in_chunk_form = true},
    {.name = "v_new", .point = &CastPoints::v_new, .in_chunk_form = true, .is_operand = true},
    {.name = "o_inter", .point = &CastPoints::o_inter, .in_chunk_form = true},
    {.name = "o_intra", .point = &CastPoints::o_intra, .in_chunk_form = true},
    {.name = "tensor_core", .point = &CastPoints::tensor_core, .in_chunk_form = true},
    {.name = "state", .point = &CastPoints::state, .in_chunk_form = true, .is_operand = true},
    {.name = "initial_state", .point = &CastPoints::initial_state, .in_chunk_form = true},
    {.name = "carry", .point = &CastPoints::carry, .in_token_forms = true, .in_chunk_form = true},
    {.name = "transition", .point = &CastPoints::transition, .in_chunk_form = true},
    {.name = "segment_state", .point = &CastPoints::segment_state, .in_chunk_form = true},
    {.name = "dv_local", .point = &CastPoints::dv_local, .in_chunk_form = true, .backward = true},
    {.name = "dv", .point = &CastPoints::dv, .in_chunk_form = true, .backward = true, .is_operand = true},
    {.name = "dh", .point = &CastPoints::dh, .in_chunk_form = true, .backward = true, .is_operand = true},
    {.name = "dw", .point = &CastPoints::dw, .in_chunk_form = true, .backward = true, .is_operand = true},
    {.name = "dA", .point = &CastPoints::dA, .in_chunk_form = true, .backward = true, .is_operand = true},
    {.name = "state_product", .point = &CastPoints::state_product, .in_chunk_form = true, .backward = true},
};
static_assert(sizeof(CastPoints) == std::size(point_rows) * sizeof(Rounding), "every point has a row");

/// From the coarsest on; of tf32 and fp16, which keep the same 11 bits, tf32 comes first: it truncates.
constexpr Rounding by_coarseness[] = {Rounding::bf16, Rounding::tf32, Rounding::fp16, Rounding::none};

}  // namespace

std::span<const CastPointRow> cast_point_rows() { return point_rows; }

Rounding coarsest_cast(const CastPoints& casts, bool chunk_form, bool backward) {
  const auto place = [](Rounding rounding) { return std::ranges::find(by_coarseness, rounding); };
  auto coarsest = place(Rounding::none);
  for (const CastPointRow& row : point_rows)
    if ((chunk_form ? row.in_chunk_form : row.in_token_forms) && (backward || !row.backward))
      coarsest = std::min(coarsest, place(casts.*row.point));
  return *coarsest;
}

CastPoints fla_cast_points(Rounding narrow, bool beta_is_16_bit) {
  CastPoints casts;
  casts.normalised = narrow;
  casts.score_operands = Rounding::tf32;
  casts.Aqk = narrow;
  casts.inverse_operands = Rounding::tf32;
  casts.Akk_inv = narrow;
  casts.beta_key = beta_is_16_bit ? narrow : Rounding::none;
  casts.operands = narrow;
  casts.w = casts.u = casts.v_new = narrow;
  casts.state = narrow;
  casts.transition = Rounding::tf32;
  casts.dv_local = casts.dv = casts.dh = casts.dw = casts.dA = casts.state_product = narrow;
  return casts;
}

CastPoints tensor_core_operands() {
  CastPoints casts = fla_cast_points(Rounding::tf32, false);
  casts.normalised = casts.u = casts.dv_local = casts.state_product = Rounding::none;
  return casts;
}

CastPoints narrow_operands(Rounding narrow) {
  CastPoints casts;
  casts.score_operands = casts.inverse_operands = Rounding::tf32;
  casts.Aqk = casts.Akk_inv = casts.operands = casts.v_new = casts.state = narrow;
  casts.dv = casts.dh = narrow;
  casts.dA = Rounding::tf32;
  return casts;
}

CastPoints stages_between_kernels(Rounding narrow) {
  CastPoints casts;
  casts.Aqk = casts.Akk_inv = casts.kg = casts.u = casts.w = narrow;
  return casts;
}

CastPoints flash_kda_cast_points(bool by_residual) {
  CastPoints casts;
  casts.normalised = casts.exponentials = casts.score_operands = casts.Aqk = casts.Akk_inv = Rounding::bf16;
  casts.L = casts.inverse_operands = Rounding::fp16;
  casts.operands = casts.w = casts.u = casts.prediction = casts.v_new = Rounding::bf16;
  casts.state = casts.carry = Rounding::bf16;
  if (by_residual) {
    casts.scores = Rounding::fp16;
    casts.residual = casts.o_inter = casts.o_intra = casts.initial_state = Rounding::bf16;
  }
  return casts;
}

}  // namespace kda_check::kda

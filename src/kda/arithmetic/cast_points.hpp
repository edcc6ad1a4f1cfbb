// Where an fp32 computation rounds below its format: one table of the points, and the points of known
// kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kda_check::kda {

/// Rounding of a value on its way into an operation or into memory. None: it keeps the format of the
/// computation.
enum class Rounding : std::uint8_t { none, bf16, fp16, tf32 };

/// Where an fp32 computation rounds (docs/kda.md, "Cast points"). Names are those of the stages.
struct CastPoints {
  Rounding normalised = Rounding::none;        ///< q and k after the L2 norm
  Rounding decay = Rounding::none;             ///< exp(g), and exp of a chunk's last row on the carried state
  Rounding gate = Rounding::none;              ///< token forms: g, the log decay, before exp
  Rounding beta = Rounding::none;              ///< token forms: the write strength, behind its sigmoid
  Rounding g_cumsum = Rounding::none;          ///< the cumulated gates
  Rounding exponentials = Rounding::none;      ///< chunk: exponentials before they multiply q or k
  Rounding score_operands = Rounding::none;    ///< q 2^(G-a), k 2^(a-G) in the factored scores
  Rounding off_diagonal = Rounding::none;      ///< those left of the diagonal's block; none: as all
  Rounding scores = Rounding::none;            ///< k k^T 2^(G_i-G_j) before beta, and beta on its way to it
  Rounding Aqk = Rounding::none;               ///< scores, scale included
  Rounding L = Rounding::none;                 ///< beta k k^T 2^(G_i-G_j)
  Rounding inverse_operands = Rounding::none;  ///< factors of the products that form the inverse
  Rounding Akk_inv = Rounding::none;           ///< the inverse
  Rounding beta_key = Rounding::none;          ///< k * beta, before the decay (16-bit beta only)
  Rounding operands = Rounding::none;  ///< v * beta, k * beta * 2^G, qg, kg: operands made for a product
  Rounding kg = Rounding::none;        ///< k 2^(Gn-G); none: as `operands`
  Rounding w = Rounding::none, u = Rounding::none;
  Rounding prediction = Rounding::none;  ///< S^T k (token forms), w S (chunk), before v or u minus it
  Rounding residual = Rounding::none;    ///< chunk: v minus the prediction, and beta on its way to it
  Rounding v_new = Rounding::none;
  Rounding o_inter = Rounding::none, o_intra = Rounding::none;  ///< chunk: o from the state, o from Aqk v_new
  Rounding tensor_core = Rounding::none;    ///< chunk: operands as a product takes them; whole in memory
  Rounding state = Rounding::none;          ///< h: the state as an operand of the chunk form
  Rounding initial_state = Rounding::none;  ///< chunk: as the first chunk finds it
  Rounding carry = Rounding::none;       ///< the carried state (and its gradient), after every token or chunk
  Rounding transition = Rounding::none;  ///< chunk, segments: factors of the products that form and apply M
  Rounding segment_state = Rounding::none;  ///< chunk, segments: A, and the states that merging gives
  // Of the backward pass only.
  Rounding dv_local = Rounding::none;  ///< Aqk^T do, as it is stored
  Rounding dv = Rounding::none, dh = Rounding::none, dw = Rounding::none;
  Rounding dA = Rounding::none;             ///< factors of the products that form dAkk
  Rounding state_product = Rounding::none;  ///< h dh and its sum over V

  bool operator==(const CastPoints&) const = default;
};

/// One point and who has it. Not `normalised`: whether q and k are normalised, and rounded then, is the
/// problem's affair.
struct CastPointRow {
  using Point = Rounding CastPoints::*;  // written out, nvcc's host compiler warns of it
  std::string_view name;
  Point point;
  bool in_token_forms = false, in_chunk_form = false;
  bool backward = false;    ///< in the backward pass alone
  bool is_operand = false;  ///< read by matrix products of the chunk form: "products" stands for all of these
};
std::span<const CastPointRow> cast_point_rows();

/// The coarsest rounding of a form, as the formats of products are ordered.
Rounding coarsest_cast(const CastPoints& casts, bool chunk_form, bool backward);

/// docs/kda.md, "FLA chunk forward" and "FLA chunk backward".
CastPoints fla_cast_points(Rounding narrow, bool beta_is_16_bit);
/// docs/kda.md, "Machine model": tensor cores take fp32 operands as tf32. What is no operand stays.
CastPoints tensor_core_operands();
/// What a tensor core multiplies, and nothing else: 16 bits where FLA has them, tf32 in scores and inverse.
CastPoints narrow_operands(Rounding narrow);
/// What one kernel stores and another loads, and nothing else: sglang-jax.
CastPoints stages_between_kernels(Rounding narrow);
/// docs/kda.md, "FlashKDA". `by_residual`: with the prediction subtracted before the inverse, as FlashKDA
/// does; else as far as its stages are those of the chunk form.
CastPoints flash_kda_cast_points(bool by_residual);

}  // namespace kda_check::kda

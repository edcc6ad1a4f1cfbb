// How a variant computes: data, chosen per run and printed with every result. The kernels are written once
// and ask it at each operation it governs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "numeric/formats.hpp"

namespace kda_check::kda {

/// a * b + c: one rounding, or one after each operation.
enum class Contraction : std::uint8_t { separate, fused };

/// How exp(G_i - G_j), the decay between two tokens of a chunk, is formed (kda-math 4.3, hazards 0).
/// `anchor_rows` says how many rows share an anchor. Left of the diagonal block the anchor is the block's
/// first row in all of them.
enum class DecayForm : std::uint8_t {
  pair,          ///< one exponential for each (i, j, channel); cannot overflow
  anchor_pair,   ///< factored left of the diagonal block, pairwise inside: what FLA does without safe_gate
  anchor_first,  ///< factored everywhere, anchor = first row of the block
  anchor_mid,    ///< factored everywhere, anchor in the diagonal block = its middle row: FLA with safe_gate
};

/// How (I + L)^-1 is formed (kda-math 4.2).
enum class InverseForm : std::uint8_t {
  substitution,  ///< (a) row by row over the whole chunk
  blocks,        ///< (b) row by row in 16x16 blocks, then merged by products
};

/// Rounding of a value on its way into an operation or into memory. None: it keeps the format of the
/// computation.
enum class Rounding : std::uint8_t { none, bf16, fp16, tf32 };

/// Where the chunk form rounds (kda-math 6.2). Names are those of the stages.
struct CastPoints {
  Rounding normalised = Rounding::none;        ///< q and k after the L2 norm
  Rounding score_operands = Rounding::none;    ///< q 2^(G-a), k 2^(a-G) in the factored scores
  Rounding Aqk = Rounding::none;               ///< scores, scale included
  Rounding inverse_operands = Rounding::none;  ///< factors of the products that merge the inverse's blocks
  Rounding Akk_inv = Rounding::none;           ///< the inverse
  Rounding beta_key = Rounding::none;          ///< k * beta, before the decay (16-bit beta only)
  Rounding operands = Rounding::none;  ///< v * beta, k * beta * 2^G, qg, kg: operands made for a product
  Rounding stored = Rounding::none;    ///< w, u, v_new
  Rounding state = Rounding::none;     ///< h: the state as an operand; the carried state is not rounded
};

enum class Storage : std::uint8_t {
  none,      ///< nothing is rounded below the format of the computation
  upstream,  ///< where FLA's kernels round for this dtype (bf16, fp16; for fp32 and fp64 nothing)
};

struct Arithmetic {
  Contraction contraction = Contraction::fused;
  Storage storage = Storage::upstream;
  DecayForm decay = DecayForm::anchor_pair;
  int anchor_rows = 16;  ///< 16, 32 or 64; no more than the chunk
  InverseForm inverse = InverseForm::substitution;

  bool operator==(const Arithmetic&) const = default;
};

/// The cast points of FLA's chunk forward for tensors of `dtype`; none for fp32 and fp64 (their tf32 products
/// are an arithmetic of the GPU, not of the dtype). `beta_is_16_bit`: beta is stored in bf16 or fp16 and used
/// as it is.
CastPoints upstream_cast_points(numeric::DType dtype, bool beta_is_16_bit);

/// Parts of the arithmetic a variant has; the others are not printed and may not be set.
struct ArithmeticAxes {
  bool chunk = false;  ///< decay, inverse and storage
};

/// "contraction=fused decay=anchor-mid:16 ..." in the words --arithmetic takes, the fixed axes included.
std::string describe(const Arithmetic& arithmetic, ArithmeticAxes axes);

/// Applies "key=value" to `arithmetic`. Throws Error{usage} for a key or value that does not exist.
void set_axis(Arithmetic& arithmetic, std::string_view assignment);

/// True if the axis of "key=value" exists for a variant with these axes.
bool has_axis(ArithmeticAxes axes, std::string_view assignment);

/// The keys and the values each takes, for `list`.
struct AxisDescription {
  std::string key;
  std::string values;
  std::string summary;
};
std::vector<AxisDescription> axis_descriptions();

}  // namespace kda_check::kda

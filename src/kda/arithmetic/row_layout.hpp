// Which thread of a Triton program has which elements of a row, and with it the order in which tl.sum adds
// them up. Read from the PTX that Triton 3.6 makes of FLA 0.6.0, and held to recorded answers
// (docs/arithmetic.md, "Triton").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "numeric/formats.hpp"

namespace kda_check::kda {

/// How a thread adds up its own elements where no compiler of Triton's says so.
enum class OwnSum : std::uint8_t {
  running,      ///< from the first upwards
  alternating,  ///< the even ones and the odd ones by themselves, from the first upwards
  pairs,        ///< neighbours, then neighbours of these
};

/// Element e of a row is in thread e / registers mod (lanes warps): every thread has runs of `registers`
/// neighbours. It adds its own upwards; then the upper half of the lanes of each warp is added to the lower
/// until one is left, and the warps in the same way.
struct RowLayout {
  std::size_t registers = 0, lanes = 32, warps = 1;  ///< powers of two; no registers: none is known
  OwnSum own = OwnSum::running;

  bool operator==(const RowLayout&) const = default;
};

/// Of a row that one warp adds up, one element a thread, each half of the lanes has a sum of its own. Which
/// half's a norm divides by: that of the thread that has the quotient.
struct NormHalves {
  std::size_t rows = 0;     ///< so many neighbours of the row, in turn; 0: one half's, all of it
  std::size_t columns = 0;  ///< whose, so many neighbouring columns of the state in turn; 0: the lower's

  bool operator==(const NormHalves&) const = default;
};

/// What the backward kernel that goes through states and the inverse takes at a time.
struct WyBlock {
  std::size_t keys = 0, values = 0, warps = 0;  ///< columns of K, of V; 0: they are not known

  bool operator==(const WyBlock&) const = default;
};

/// Where threads divide what they have added up.
NormHalves norm_halves(const RowLayout& norm, std::size_t K);

/// Of rows of K elements over 16 lanes of a warp, a run of neighbours each.
RowLayout lane_layout(std::size_t K);

/// Of the rows of q and k that FlashInfer's decode kernels normalise, and of the columns of their state.
RowLayout paired_norm_layout(std::size_t K);
RowLayout paired_columns_layout(std::size_t K);

/// What a program of a token form takes: so many columns of V, with so many warps.
struct TokenProgram {
  std::size_t columns = 0, warps = 0;

  bool operator==(const TokenProgram&) const = default;
};
/// That of fused_recurrent_kda.
inline constexpr TokenProgram fla_token_program{32, 4};

/// Of the rows of q and k that fused_recurrent_kda normalises, K elements.
RowLayout recurrent_norm_layout(std::size_t K, numeric::DType dtype, const TokenProgram& program);
/// A block of its state, as threads have it. `dtype`: the initial state's; null without one.
struct StateBlock {
  std::size_t K, V;
  bool v_first;
  const numeric::DType* dtype;
  TokenProgram program;
};
/// Of its columns, over K.
RowLayout recurrent_state_layout(const StateBlock& block);
/// Each thread divides the elements that it multiplies its part of the state by.
NormHalves recurrent_norm_halves(const RowLayout& norm, const StateBlock& block);

// chunk_kda is autotuned: the layouts it may have, for element type `dtype` of q and k as stored.

/// Of the rows of q and k that its norm adds up.
std::vector<RowLayout> norm_layouts(std::size_t K, numeric::DType dtype);
/// Of the rows of pairs, K elements, that its scores are where no two tokens share an anchor.
std::vector<RowLayout> pair_layouts(std::size_t K, numeric::DType dtype);
/// Of 16 rows of the inverse. `by_pairs`: of the kernel that has scores by pairs beside it.
std::vector<RowLayout> substitution_layouts(numeric::DType dtype, bool by_pairs);
/// Rows that its running sums take at once: of gates, and backwards.
std::span<const std::size_t> scan_rows();

// Backwards.

/// Of what goes through the states and the inverse.
std::span<const WyBlock> wy_blocks();
/// Warps of what stays within a chunk.
std::span<const std::size_t> intra_warps();
/// Warps of the gates.
std::span<const std::size_t> gate_warps();

/// The sums of one chunk backwards.
struct GradientLayouts {
  std::size_t keys = 64, values = 64;                  ///< columns of a block, of K and of V
  RowLayout states{1, 32, 1};                          ///< of h dh, over the V of a block
  bool packs_states = false;                           ///< 16-bit elements of a thread two at a time
  bool fuses_states = false;                           ///< their sum has one block, and its decay is fused
  RowLayout value_rows{1, 32, 1}, key_rows{1, 32, 1};  ///< of dbeta through the inverse, over a block
  std::size_t chunk_rows = 64, row_warps = 1;          ///< of sums over the rows of a chunk
  std::size_t channels = 32;                           ///< of a block within the chunk
  RowLayout pair_rows{1, 32, 1};                       ///< of dbeta within the chunk, over these
};
struct GradientShape {
  std::size_t K, V, chunk_rows;
  numeric::DType dtype;  ///< of q and k as stored
  bool v_first;          ///< the state
  bool by_pairs;         ///< blocks on the diagonal are summed pair by pair
};
GradientLayouts gradient_layouts(const GradientShape& shape, const WyBlock& block, std::size_t intra_warps);

/// Of the gates' gradients: the K of a row, and then 32 rows.
struct GateLayouts {
  RowLayout keys{1, 32, 1}, rows{1, 32, 1};
};
inline constexpr std::size_t gate_rows = 32;
GateLayouts gate_layouts(std::size_t K, numeric::DType dtype, std::size_t warps);

}  // namespace kda_check::kda

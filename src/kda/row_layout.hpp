// Which thread of a Triton program has which elements of a row, and with it the order in which tl.sum adds
// them up. Read from the PTX that Triton 3.6 makes of FLA 0.6.0, and held to recorded answers
// (docs/arithmetic.md, "Triton").
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "numeric/formats.hpp"

namespace kda_check::kda {

/// Element e of a row is in thread e / registers mod (lanes warps): every thread has runs of `registers`
/// neighbours. It adds its own upwards; then the upper half of the lanes of each warp is added to the lower
/// until one is left, and the warps in the same way.
struct RowLayout {
  std::size_t registers = 0, lanes = 32, warps = 1;  ///< powers of two; no registers: none is known

  bool operator==(const RowLayout&) const = default;
};

/// Of the rows of q and k that fused_recurrent_kda normalises, K elements.
RowLayout recurrent_norm_layout(std::size_t K, numeric::DType dtype);
/// Of the columns of its state, over K. `initial_state`: its element type; null without one.
RowLayout recurrent_state_layout(std::size_t K, std::size_t V, bool v_first,
                                 const numeric::DType* initial_state);

// chunk_kda is autotuned: the layouts it may have, for element type `dtype` of q and k as stored.

/// Of the rows of q and k that its norm adds up.
std::vector<RowLayout> norm_layouts(std::size_t K, numeric::DType dtype);
/// Of the rows of pairs, K elements, that its scores are where no two tokens share an anchor.
std::vector<RowLayout> pair_layouts(std::size_t K, numeric::DType dtype);
/// Of 16 rows of the inverse. `by_pairs`: of the kernel that has scores by pairs beside it.
std::vector<RowLayout> substitution_layouts(numeric::DType dtype, bool by_pairs);
/// Rows that its running sum of gates takes at once.
std::span<const std::size_t> scan_rows();

}  // namespace kda_check::kda

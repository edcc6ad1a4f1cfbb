// What the chunk form's backward kernel takes: one chunk of one head, whose forward arrays are there.
#pragma once

#include <cstddef>

#include "kda/arithmetic/row_layout.hpp"

namespace kda_check::kda {

/// Backward stages to be used as they are in place of those computed; null: the computed one. Layouts as in
/// ChunkBackwardBlock.
template <class T>
struct GivenGradientStages {
  const T *dAqk = nullptr, *dv_local = nullptr, *dh = nullptr, *dv = nullptr, *dw = nullptr, *dAkk = nullptr;
};

/// Every stage is left in its array (docs/kda.md, "Chunk backward": B1 to B4).
template <class T>
struct ChunkBackwardBlock {
  const T* output_gradient;  ///< [n][value_stride] do
  const T* entering_state;   ///< [key_dim][value_stride], not rounded
  T* state_gradient;         ///< [key_dim][value_stride], in: of the state leaving; out: entering
  T* dAqk;                   ///< [n][score_stride], of the scores without scale; zeros above the diagonal
  T* dv_local;               ///< [n][value_stride] Aqk^T do
  T* dh;                     ///< [key_dim][value_stride] the gradient of the leaving state, as an operand
  T* dv;                     ///< [n][value_stride] the gradient of v_new
  T* dw;                     ///< [n][key_stride]
  T* dAkk;                   ///< [n][score_stride], of L; strictly lower
  T* dG;                     ///< [n][key_stride], of the cumulative gate in natural units
  T *dq, *dk;                ///< [n][key_stride], of one value head
  T* value_gradient;         ///< [n][value_stride] beta Akk_inv^T dv: what is stored as dv
  T* dbeta;                  ///< [n]
  T* scratch;                ///< ChunkBackwardScratch::total() elements
  GivenGradientStages<T> given;
  GradientLayouts layouts{};  ///< read with ReductionKind::triton
  T* dread = nullptr;         ///< [n][key_stride], of what is read along; null: it is k, and dk has both
};

/// ChunkBackwardBlock::scratch for chunks of at most `rows` rows.
struct ChunkBackwardScratch {
  std::size_t by_key, by_value, square, state, line;
  constexpr ChunkBackwardScratch(std::size_t rows, std::size_t key_dim, std::size_t value_dim,
                                 std::size_t key_stride, std::size_t value_stride, std::size_t score_stride)
      : by_key(rows * key_stride),
        by_value(rows * value_stride),
        square(rows * score_stride),
        state(value_dim * key_stride > key_dim * value_stride ? value_dim * key_stride
                                                              : key_dim * value_stride),
        line(key_stride) {
    // Transposed they have as many elements as a square matrix of the wider side.
    by_key = by_key > key_dim * score_stride ? by_key : key_dim * score_stride;
    by_value = by_value > value_dim * score_stride ? by_value : value_dim * score_stride;
  }
  constexpr std::size_t total() const {
    return 8 * by_key + 4 * by_value + 4 * square + 2 * state + 4 * line;
  }
};

}  // namespace kda_check::kda

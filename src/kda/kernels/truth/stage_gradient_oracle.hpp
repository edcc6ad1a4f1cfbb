// The backward stages of one chunk in double-double: B1 to B3 of docs/kda.md, "Chunk backward". Magnitudes as
// in stage_oracle.hpp: a factor that is itself a sum counts with its magnitude, but for the state and its
// gradient, which come from other chunks and count as they are.
#pragma once

#include "kda/kernels/truth/stage_oracle.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// to[column][row] = from[row][column], magnitudes too; zeros up to the stride.
inline void stage_transpose(const OracleMatrix& from, std::size_t rows, std::size_t columns,
                            const OracleMatrix& to) {
  for (std::size_t column = 0; column < columns; ++column)
    for (std::size_t row = 0; row < to.stride; ++row) {
      const std::size_t source = row * from.stride + column, target = column * to.stride + row;
      const bool valid = row < rows;
      to.hi[target] = valid ? from.hi[source] : 0;
      to.lo[target] = valid ? from.lo[source] : 0;
      to.magnitude[target] = valid ? from.magnitude[source] : 0;
    }
}

/// Element by element: m = m, or -m, as far as column i of row i, or before it; zero from there on.
inline void stage_lower(const OracleMatrix& m, std::size_t rows, bool with_diagonal, bool negated) {
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < m.stride; ++j) {
      const std::size_t at = i * m.stride + j;
      if (j < i || (with_diagonal && j == i)) {
        if (negated) m.hi[at] = -m.hi[at], m.lo[at] = -m.lo[at];
      } else {
        m.hi[at] = m.lo[at] = m.magnitude[at] = 0;
      }
    }
}

/// Column j times beta_j.
inline void stage_columns_times_beta(const OracleMatrix& m, std::size_t rows, const OracleMatrix& beta) {
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < rows; ++j) {
      const std::size_t at = i * m.stride + j, of_beta = j * beta.stride;
      const numeric::DoubleDouble factor{beta.hi[of_beta], beta.lo[of_beta]};
      const numeric::DoubleDouble value = numeric::DoubleDouble{m.hi[at], m.lo[at]} * factor;
      m.hi[at] = value.hi, m.lo[at] = value.lo;
      m.magnitude[at] *= factor.hi < 0 ? -factor.hi : factor.hi;
    }
}

/// B1, B2: dAqk, dv_local, dv; scale do is left in value_scratch.
inline void stage_value_gradients(const StageGradientOracleBlock& block) {
  const StageOracleBlock& forward = block.forward;
  const std::size_t n = forward.rows, K = forward.key_dim, V = forward.value_dim;
  const OracleMatrix& scaled = forward.value_scratch;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t v = 0; v < V; v += StagePack::count) {
      const StageNumber value =
          load_number(block.output_gradient, i, v) * StagePack::broadcast(forward.scale);
      store_number(scaled, i, v, value, absolute(value.hi));
    }
  stage_transpose(forward.v_new, n, V, block.value_columns);
  stage_product(n, n, V, scaled, false, block.value_columns, block.dAqk, false, 1, Summed::right);
  stage_lower(block.dAqk, n, true, false);
  stage_product(n, V, n, forward.Aqk, true, block.output_gradient, block.dv_local, false, 1, Summed::left);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t v = 0; v < V; v += StagePack::count)
      store_number(block.dv, i, v, load_number(block.dv_local, i, v),
                   StagePack::load(block.dv_local.magnitude + i * block.dv_local.stride + v));
  stage_product(n, V, K, forward.kg, false, block.gradient, block.dv, true, 1, Summed::left);
}

/// B2: diag(exp(Gn)) dh + qg^T (scale do) - w^T dv
inline void stage_state_gradient(const StageGradientOracleBlock& block) {
  const StageOracleBlock& forward = block.forward;
  const std::size_t n = forward.rows, K = forward.key_dim, V = forward.value_dim;
  stage_decay_over_chunk(forward, block.gradient);
  stage_product(K, V, n, forward.qg, true, forward.value_scratch, block.gradient, true, 1, Summed::left);
  stage_product(K, V, n, forward.w, true, block.dv, block.gradient, true, -1, Summed::both);
}

/// B3: dw = -dv h^T; dAkk = -stril(A^T stril(dA) A^T), dA = (dv v^T + dw (k exp(G))^T) diag(beta).
inline void stage_inverse_gradients(const StageGradientOracleBlock& block) {
  const StageOracleBlock& forward = block.forward;
  const std::size_t n = forward.rows, K = forward.key_dim, V = forward.value_dim;
  stage_transpose(forward.state, K, V, block.state_columns);
  stage_product(n, K, V, block.dv, false, block.state_columns, block.dw, false, -1, Summed::left);
  stage_transpose(forward.v, n, V, block.value_columns);
  stage_product(n, n, V, block.dv, false, block.value_columns, block.square, false, 1, Summed::left);
  stage_decayed(forward, forward.read, false, forward.key_scratch);
  stage_transpose(forward.key_scratch, n, K, block.key_columns);
  stage_product(n, n, K, block.dw, false, block.key_columns, block.square, true, 1, Summed::left);
  stage_columns_times_beta(block.square, n, forward.beta);
  stage_lower(block.square, n, false, false);
  stage_transpose(forward.Akk_inv, n, n, block.square_columns);
  stage_product(n, n, n, block.square, false, block.square_columns, block.dAkk, false, 1, Summed::both);
  for (std::size_t e = 0; e < n * block.dAkk.stride; ++e) {
    block.square.hi[e] = block.dAkk.hi[e];
    block.square.lo[e] = block.dAkk.lo[e];
    block.square.magnitude[e] = block.dAkk.magnitude[e];
  }
  stage_product(n, n, n, forward.Akk_inv, true, block.square, block.dAkk, false, 1, Summed::both);
  stage_lower(block.dAkk, n, false, true);
}

/// Every backward stage, dh being the gradient that comes in.
inline void stage_gradients_of_chunk(const StageGradientOracleBlock& block) {
  stage_value_gradients(block);
  stage_inverse_gradients(block);
  stage_state_gradient(block);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

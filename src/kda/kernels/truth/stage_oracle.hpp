// The stages of one chunk in double-double: F2 to F11 of docs/kda.md, "Stages", with one exponential for each
// pair, the forms that cannot overflow. The magnitude of an element is the sum of the absolute values of the
// terms of its last sum, where a term's factor that is itself a sum (L in the inverse, the inverse in u and
// w, u and w in v_new, v_new in h) counts with its magnitude: errors of that size are handed on.
#pragma once

#include "kda/kernels/truth/oracle.hpp"
#include "numeric/double_double_functions.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

using StagePack = Lanes<double, 1>;
using StageNumber = numeric::BasicDoubleDouble<StagePack>;

KDA_CHECK_INLINE StageNumber load_number(const OracleMatrix& m, std::size_t row, std::size_t column) {
  const std::size_t at = row * m.stride + column;
  return {StagePack::load(m.hi + at), StagePack::load(m.lo + at)};
}
KDA_CHECK_INLINE StageNumber broadcast_number(const OracleMatrix& m, std::size_t row, std::size_t column) {
  const std::size_t at = row * m.stride + column;
  return {StagePack::broadcast(m.hi[at]), StagePack::broadcast(m.lo[at])};
}
KDA_CHECK_INLINE void store_number(const OracleMatrix& m, std::size_t row, std::size_t column,
                                   const StageNumber& value, const StagePack& magnitude) {
  const StageNumber sum = numeric::two_sum(value.hi, value.lo);
  const std::size_t at = row * m.stride + column;
  sum.hi.store(m.hi + at);
  sum.lo.store(m.lo + at);
  magnitude.store(m.magnitude + at);
}

__attribute__((noinline)) inline StageNumber stage_exponential(const StageNumber& x) {
  return numeric::exp(x);
}

/// Which factor of a product counts with its magnitude. Both: the magnitude of each times the other.
enum class Summed : unsigned char { left, right, both };

/// C = C0 + sum_d A_rd B_d (`sign` -1: minus), C0 and its magnitude as C holds them, or zero. A is read as
/// (row, depth), or transposed.
inline void stage_product(std::size_t rows, std::size_t columns, std::size_t depth, const OracleMatrix& a,
                          bool a_transposed, const OracleMatrix& b, const OracleMatrix& c, bool from_result,
                          double sign, Summed summed) {
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; column += StagePack::count) {
      StageNumber sum{StagePack::zero(), StagePack::zero()};
      StagePack magnitude = StagePack::zero();
      if (from_result) {
        sum = load_number(c, row, column);
        magnitude = StagePack::load(c.magnitude + row * c.stride + column);
      }
      StagePack ignored = StagePack::zero();
      for (std::size_t d = 0; d < depth; ++d) {
        StageNumber factor = a_transposed ? broadcast_number(a, d, row) : broadcast_number(a, row, d);
        factor = {factor.hi * sign, factor.lo * sign};
        const StageNumber row_of_b = load_number(b, d, column);
        DoubleDoubleStep<StagePack>::add_product(factor, row_of_b, sum, ignored);
        const std::size_t at = a_transposed ? d * a.stride + row : row * a.stride + d;
        if (summed != Summed::right) magnitude = magnitude + absolute(row_of_b.hi) * a.magnitude[at];
        if (summed != Summed::left)
          magnitude = magnitude + StagePack::load(b.magnitude + d * b.stride + column) *
                                      (a.hi[at] < 0 ? -a.hi[at] : a.hi[at]);
      }
      store_number(c, row, column, sum, magnitude);
    }
}

/// Row i: target = x exp(G_i), or with `from_last` x exp(Gn - G_i), Gn being the last row of G.
inline void stage_decayed(const StageOracleBlock& block, const OracleMatrix& x, bool from_last,
                          const OracleMatrix& target) {
  for (std::size_t i = 0; i < block.rows; ++i)
    for (std::size_t k = 0; k < block.key_dim; k += StagePack::count) {
      StageNumber exponent = load_number(block.G, i, k);
      if (from_last) exponent = load_number(block.G, block.rows - 1, k) - exponent;
      const StageNumber value = load_number(x, i, k) * stage_exponential(exponent);
      store_number(target, i, k, value, absolute(value.hi));
    }
}

/// target = beta x
inline void stage_times_beta(const StageOracleBlock& block, const OracleMatrix& x, std::size_t columns,
                             const OracleMatrix& target) {
  for (std::size_t i = 0; i < block.rows; ++i)
    for (std::size_t c = 0; c < columns; c += StagePack::count) {
      const StageNumber value = load_number(x, i, c) * broadcast_number(block.beta, i, 0);
      store_number(target, i, c, value, absolute(value.hi));
    }
}

/// Aqk and L, against columns [column, column + lanes) of the transposed keys and gates.
inline void stage_scores(const StageOracleBlock& block, std::size_t i, std::size_t column) {
  StageNumber q_sum{StagePack::zero(), StagePack::zero()}, k_sum = q_sum;
  StagePack q_magnitude = StagePack::zero(), k_magnitude = StagePack::zero();
  for (std::size_t k = 0; k < block.key_dim; ++k) {
    const StageNumber decay =
        stage_exponential(broadcast_number(block.G, i, k) - load_number(block.G_columns, k, column));
    const StageNumber key = load_number(block.k_columns, k, column) * decay;
    DoubleDoubleStep<StagePack>::add_product(broadcast_number(block.q, i, k), key, q_sum, q_magnitude);
    DoubleDoubleStep<StagePack>::add_product(broadcast_number(block.read, i, k), key, k_sum, k_magnitude);
  }
  const StageNumber beta = broadcast_number(block.beta, i, 0);
  q_sum = numeric::two_sum(q_sum.hi, q_sum.lo);
  k_sum = numeric::two_sum(k_sum.hi, k_sum.lo);
  store_number(block.Aqk, i, column, q_sum * StagePack::broadcast(block.scale),
               q_magnitude * (block.scale < 0 ? -block.scale : block.scale));
  store_number(block.L, i, column, k_sum * beta, k_magnitude * absolute(beta.hi));
  for (std::size_t lane = 0; lane < StagePack::count; ++lane) {
    const std::size_t j = column + lane;
    const auto clear = [&](const OracleMatrix& m) {
      const std::size_t at = i * m.stride + j;
      m.hi[at] = m.lo[at] = m.magnitude[at] = 0;
    };
    if (j > i) clear(block.Aqk);
    if (j >= i) clear(block.L);
  }
}

/// Row i of (I + L)^-1: -sum_{m<i} L_im X_m with X_mm = 1, and 1 on the diagonal.
inline void stage_inverse(const StageOracleBlock& block) {
  const OracleMatrix &l = block.L, &x = block.Akk_inv;
  for (std::size_t i = 0; i < block.rows; ++i) {
    for (std::size_t column = 0; column < block.rows; column += StagePack::count) {
      StageNumber sum{StagePack::zero(), StagePack::zero()};
      StagePack magnitude = StagePack::zero();
      StagePack ignored = StagePack::zero();
      for (std::size_t m = column; m < i; ++m) {
        const StageNumber factor = -broadcast_number(l, i, m), row = load_number(x, m, column);
        DoubleDoubleStep<StagePack>::add_product(factor, row, sum, ignored);
        magnitude = magnitude + absolute(row.hi) * l.magnitude[i * l.stride + m];
      }
      store_number(x, i, column, sum, magnitude);
    }
    for (std::size_t j = i; j < x.stride; ++j) {
      const std::size_t at = i * x.stride + j;
      x.hi[at] = x.magnitude[at] = j == i ? 1.0 : 0.0;
      x.lo[at] = 0;
    }
  }
}

/// diag(exp(Gn)) x, [key_dim][value_dim]: a state over the whole chunk, or its gradient.
inline void stage_decay_over_chunk(const StageOracleBlock& block, const OracleMatrix& x) {
  for (std::size_t k = 0; k < block.key_dim; ++k) {
    const StageNumber decay = stage_exponential(broadcast_number(block.G, block.rows - 1, k));
    for (std::size_t v = 0; v < block.value_dim; v += StagePack::count) {
      const StageNumber value = load_number(x, k, v) * decay;
      store_number(x, k, v, value, absolute(value.hi));
    }
  }
}

/// Everything from q, k, v, beta, G and the state entering the chunk; the state leaves as that of the next.
inline void stages_of_chunk(const StageOracleBlock& block) {
  const std::size_t n = block.rows, K = block.key_dim, V = block.value_dim;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t column = 0; column < block.Aqk.stride; column += StagePack::count)
      if (column <= i) stage_scores(block, i, column);
  stage_inverse(block);
  stage_times_beta(block, block.v, V, block.value_scratch);
  stage_product(n, V, n, block.Akk_inv, false, block.value_scratch, block.u, false, 1, Summed::left);
  stage_decayed(block, block.q, false, block.qg);
  stage_decayed(block, block.read, false, block.kg);
  stage_times_beta(block, block.kg, K, block.key_scratch);
  stage_product(n, K, n, block.Akk_inv, false, block.key_scratch, block.w, false, 1, Summed::left);
  stage_decayed(block, block.k, true, block.kg);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t v = 0; v < V; v += StagePack::count)
      store_number(block.v_new, i, v, load_number(block.u, i, v),
                   StagePack::load(block.u.magnitude + i * block.u.stride + v));
  stage_product(n, V, K, block.w, false, block.state, block.v_new, true, -1, Summed::left);
  stage_decay_over_chunk(block, block.state);
  stage_product(K, V, n, block.kg, true, block.v_new, block.state, true, 1, Summed::right);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

// The recurrence in double-double, with magnitudes, for one tile of V lanes of one head's state.
//
// Sums are accumulated as (hi, lo) with the error of every product and every addition of the high parts
// caught (T. Ogita, S. Rump, S. Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005, Dot2):
// the error of a sum of n terms is below n^2 2^-106 of the sum of their absolute values. With Number = double
// the same loop is the fp64 recurrence, fused, for problems too large for double-double.
//
// Magnitudes, in double precision:
//   of o_t        scale * sum_k |q_t[k] S_t[k]|
//   of the state  M_t[k] = |1 - beta_t k_t[k]^2| e^g_t[k] M_t-1[k] + beta_t |k_t[k]| (|v_t| + sum_j |k_t[j]
//   P_t[j]|)
// The second is the sum of the absolute values of the terms of S_t = (1 - beta k^2) P_t + beta k (v - sum_j
// k_j P_j), followed along t with its own contraction: it neither collapses where a state element happens to
// cancel, nor grows with T where the delta rule keeps overwriting the same memory.
#pragma once

#include "kda/kernels/lanes.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/double_double.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// sum += a * b over (hi, lo), and the absolute value of the term into `magnitude`.
template <class Pack>
KDA_CHECK_INLINE void accumulate(const numeric::BasicDoubleDouble<Pack>& a,
                                 const numeric::BasicDoubleDouble<Pack>& b,
                                 numeric::BasicDoubleDouble<Pack>& sum, Pack& magnitude) {
  const numeric::BasicDoubleDouble<Pack> term = numeric::product_terms(a, b);
  const numeric::BasicDoubleDouble<Pack> high = numeric::two_sum(sum.hi, term.hi);
  sum.hi = high.hi;
  sum.lo = sum.lo + (term.lo + high.lo);
  magnitude = magnitude + absolute(term.hi);
}

template <int W>
struct DoubleDoubleTile {
  using Pack = Lanes<double, W>;
  using Number = numeric::BasicDoubleDouble<Pack>;

  static KDA_CHECK_INLINE Number broadcast(OracleRows x, std::size_t i) {
    return {Pack::broadcast(x.hi[i]), Pack::broadcast(x.lo[i])};
  }
  static KDA_CHECK_INLINE Number load(OracleLanes x, std::size_t i) {
    return {Pack::load(x.hi + i), Pack::load(x.lo + i)};
  }
  static KDA_CHECK_INLINE void store(OracleLanes x, std::size_t i, const Number& value) {
    value.hi.store(x.hi + i);
    value.lo.store(x.lo + i);
  }
  static KDA_CHECK_INLINE Number zero() { return {Pack::zero(), Pack::zero()}; }
  static KDA_CHECK_INLINE Number normalised(const Number& x) { return numeric::two_sum(x.hi, x.lo); }
  static KDA_CHECK_INLINE Pack high(const Number& x) { return x.hi; }
  static KDA_CHECK_INLINE Number scaled(const Number& a, const Number& b) { return a * b; }
  static KDA_CHECK_INLINE Number difference(const Pack& a, const Number& b) { return -b + a; }
  /// s + k * u, normalised.
  static KDA_CHECK_INLINE Number updated(const Number& k, const Number& u, const Number& s) {
    const Number term = numeric::product_terms(k, u);
    const Number sum = numeric::two_sum(s.hi, term.hi);
    return numeric::quick_two_sum(sum.hi, sum.lo + (s.lo + term.lo));
  }
  static KDA_CHECK_INLINE void add_product(const Number& a, const Number& b, Number& sum, Pack& magnitude) {
    accumulate(a, b, sum, magnitude);
  }
};

template <int W>
struct DoubleTile {
  using Pack = Lanes<double, W>;
  using Number = Pack;

  static KDA_CHECK_INLINE Number broadcast(OracleRows x, std::size_t i) { return Pack::broadcast(x.hi[i]); }
  static KDA_CHECK_INLINE Number load(OracleLanes x, std::size_t i) { return Pack::load(x.hi + i); }
  static KDA_CHECK_INLINE void store(OracleLanes x, std::size_t i, const Number& value) {
    value.store(x.hi + i);
    Pack::zero().store(x.lo + i);
  }
  static KDA_CHECK_INLINE Number zero() { return Pack::zero(); }
  static KDA_CHECK_INLINE Number normalised(const Number& x) { return x; }
  static KDA_CHECK_INLINE Pack high(const Number& x) { return x; }
  static KDA_CHECK_INLINE Number scaled(const Number& a, const Number& b) { return a * b; }
  static KDA_CHECK_INLINE Number difference(const Pack& a, const Number& b) { return a - b; }
  static KDA_CHECK_INLINE Number updated(const Number& k, const Number& u, const Number& s) {
    return fma(k, u, s);
  }
  static KDA_CHECK_INLINE void add_product(const Number& a, const Number& b, Number& sum, Pack& magnitude) {
    sum = fma(a, b, sum);
    magnitude = fma(absolute(a), absolute(b), magnitude);
  }
};

template <class Tile>
KDA_CHECK_INLINE void oracle_tile(const OracleBlock& block) {
  using Pack = typename Tile::Pack;
  using Number = typename Tile::Number;
  const std::size_t rows = block.key_dim;
  Number prediction = Tile::zero();
  Pack prediction_magnitude = Pack::zero();
  for (std::size_t k = 0; k < rows; ++k) {
    const std::size_t at = k * Pack::count;
    const Number p = Tile::scaled(Tile::load(block.state, at), Tile::broadcast(block.decay, k));
    Tile::store(block.state, at, p);
    (Pack::load(block.state_magnitude + at) * block.decay.hi[k]).store(block.state_magnitude + at);
    Tile::add_product(Tile::broadcast(block.k, k), p, prediction, prediction_magnitude);
  }
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t now = t * rows, next = now + rows;
    const bool last = t + 1 == block.tokens;
    const Pack value = Pack::load(block.v + t * block.value_stride);
    const Number error = Tile::difference(value, Tile::normalised(prediction));  // e_t = v_t - P_t^T k_t
    const Number write = Tile::scaled(error, Tile::broadcast(block.beta, t));
    const Pack write_magnitude = absolute(value) + prediction_magnitude;
    Number output = Tile::zero();
    Pack output_magnitude = Pack::zero();
    prediction = Tile::zero();
    prediction_magnitude = Pack::zero();
    for (std::size_t k = 0; k < rows; ++k) {
      const std::size_t at = k * Pack::count;
      Number s = Tile::updated(Tile::broadcast(block.k, now + k), write, Tile::load(block.state, at));
      Pack magnitude = Pack::load(block.state_magnitude + at) * block.retained[now + k] +
                       write_magnitude * block.written[now + k];
      Tile::add_product(Tile::broadcast(block.q, now + k), s, output, output_magnitude);
      if (!last) {
        s = Tile::scaled(s, Tile::broadcast(block.decay, next + k));
        magnitude = magnitude * block.decay.hi[next + k];
        Tile::add_product(Tile::broadcast(block.k, next + k), s, prediction, prediction_magnitude);
      }
      Tile::store(block.state, at, s);
      magnitude.store(block.state_magnitude + at);
    }
    Tile::store(block.o, t * block.value_stride, Tile::normalised(output));
    output_magnitude.store(block.o_magnitude + t * block.value_stride);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

// The arithmetic of the oracle's recurrence, for V = double or a pack of doubles: each operation on one
// element of the state, and the sums over k. What the order of the sums is, the loops around say: from k = 0
// upwards, on the CPU (kernels/truth/oracle.hpp) and on a GPU (cuda/truth/recurrence.cuh).
//
// Sums are accumulated as (hi, lo) with the error of every product and every addition of the high parts
// caught (T. Ogita, S. Rump, S. Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005, Dot2):
// the error of a sum of n terms is below n^2 2^-106 of the sum of their absolute values. With plain doubles
// the same loops are the fp64 recurrence, fused, for problems too large for double-double.
//
// Magnitudes, in double precision:
//   of o_t        scale * sum_k |q_t[k] S_t[k]|
//   of the state  M_t[k] = |1 - beta_t k_t[k]^2| e^g_t[k] M_t-1[k] + beta_t |k_t[k]| (|v_t| + sum_j |k_t[j]
//   P_t[j]|); with an erase gate b_t in R^K |1 - b_t[k] k_t[k]^2|, |k_t[k]| and |b_t[j] k_t[j] P_t[j]|
// The second is the sum of the absolute values of the terms of S_t = (1 - beta k^2) P_t + beta k (v - sum_j
// k_j P_j), followed along t with its own contraction: it neither collapses where a state element happens to
// cancel, nor grows with T where the delta rule keeps overwriting the same memory.
//
// How far the recurrence in fp64 is from the exact one runs with it, column by column (docs/verdicts.md, "The
// truth"): ColumnError.
#pragma once

#include "kda/kernels/oracle_blocks.hpp"
#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

/// M before the decay of the next token; `retained` and `written` are those of
/// kernels/truth/oracle_elements.hpp.
template <class V, class Share>
KDA_CHECK_BOTH V updated_magnitude(const V& magnitude, const V& write_magnitude, const Share& retained,
                                   const Share& written) {
  return magnitude * retained + write_magnitude * written;
}

/// |S - S*| of a column of the state in fp64 and the exact one, as a norm over k. With A = 1 - beta k k^T, d
/// = e^g and u = 2^-53, S*_t - S_t = A d (S*_t-1 - S_t-1) + what token t rounds:
///   |A d| <= max(1, |1 - beta |k|^2|) max_k d
///   |rounded| <= 4u |P| + beta |k| w,  w = (K + 4) u sum_j |k_j P_j| + 8u |e|
/// where d, k and beta rounded to fp64 are counted; and of o, |q| |S - S*| + (K + 4) u sum_k |q_k S_k|. What
/// is left over of the constants is more than the squares of u and the rounding of the bound itself make.
template <class V>
struct ColumnError {
  static constexpr double unit = 0x1p-53, underflow = 0x1p-1000, least_magnitude = 0x1p-900;

  V of_state;                    ///< behind the last token
  V before = {}, of_write = {};  ///< in front of it, and of what it writes, but for beta k

  static KDA_CHECK_BOTH V larger(const V& a, const V& b) {
    using numeric::select;
    return select(a > b, a, b);
  }

  /// Through a token. `squares`: of P; `read_magnitude`: sum_j |k_j P_j|.
  KDA_CHECK_BOTH void advance(const TokenNorms& token, double K, const V& beta, const V& squares,
                              const V& read_magnitude, const V& error) {
    using numeric::absolute, numeric::broadcast_as, numeric::square_root;
    const V one = broadcast_as<V>(1.0), decay = broadcast_as<V>(token.decay);
    const V contraction = larger(one, absolute(one - beta * (token.key * token.key)));
    before = of_state;
    const V own = read_magnitude * ((K + 4) * unit) + absolute(error) * (8 * unit);
    of_write = before * (token.key * token.decay) + own;
    of_state = before * (decay * contraction * (1 + 4 * K * unit)) +
               (square_root(squares) * (4 * unit) + absolute(beta) * (own * token.key)) +
               broadcast_as<V>(underflow);
  }
  /// Of the last token's o over its magnitude.
  KDA_CHECK_BOTH V of_output(const TokenNorms& token, double K, const V& magnitude) const {
    return share(of_state * token.query + magnitude * ((K + 4) * unit), magnitude);
  }
  /// Of an element of the state behind the last token over its magnitude. `decayed`: P; `written`: |beta k|.
  template <class Share>
  KDA_CHECK_BOTH V of_element(double decay, const Share& written, const V& decayed,
                              const V& magnitude) const {
    using numeric::absolute;
    return share(before * decay + of_write * written + absolute(decayed) * (4 * unit), magnitude);
  }

 private:
  /// Infinite where it is no number.
  static KDA_CHECK_BOTH V share(const V& error, const V& magnitude) {
    using numeric::broadcast_as, numeric::select;
    const V ratio = error / (magnitude + broadcast_as<V>(least_magnitude)),
            infinite = broadcast_as<V>(__builtin_huge_val());
    return select(ratio < infinite, ratio, infinite);
  }
};

/// In double-double. A sum and its terms are pairs; of a running sum only the high part depends on the one
/// before it: `added` gives the next one, and what the step adds to the low part.
template <class V>
struct DoubleDoubleStep {
  using Number = numeric::BasicDoubleDouble<V>;
  using Term = Number;
  static constexpr bool has_low = true;

  static KDA_CHECK_BOTH Number normalised(const Number& x) { return numeric::two_sum(x.hi, x.lo); }
  static KDA_CHECK_BOTH V high(const Number& x) { return x.hi; }
  static KDA_CHECK_BOTH Number scaled(const Number& a, const Number& b) { return a * b; }
  static KDA_CHECK_BOTH Number difference(const V& a, const Number& b) { return -b + a; }
  static KDA_CHECK_BOTH Number increased(const Number& a, const V& b) { return a + b; }
  /// s + k * u, normalised.
  static KDA_CHECK_BOTH Number updated(const Number& k, const Number& u, const Number& s) {
    const Number term = numeric::product_terms(k, u);
    const Number sum = numeric::two_sum(s.hi, term.hi);
    return numeric::quick_two_sum(sum.hi, sum.lo + (s.lo + term.lo));
  }

  static KDA_CHECK_BOTH Term term(const Number& a, const Number& b) { return numeric::product_terms(a, b); }
  static KDA_CHECK_BOTH Number added(const V& high, const Term& term) {
    const Number sum = numeric::two_sum(high, term.hi);
    return {sum.hi, term.lo + sum.lo};
  }
  /// magnitude + |term|
  static KDA_CHECK_BOTH V enlarged(const V& magnitude, const Term& term) {
    using numeric::absolute;
    return added(magnitude, {absolute(term.hi), term.lo}).hi;
  }
  /// sum += a * b, and the absolute value of the term into `magnitude`.
  static KDA_CHECK_BOTH void add_product(const Number& a, const Number& b, Number& sum, V& magnitude) {
    const Term next = term(a, b);
    const Number step = added(sum.hi, next);
    sum.hi = step.hi;
    sum.lo = sum.lo + step.lo;
    magnitude = enlarged(magnitude, next);
  }
  /// The same without the absolute value.
  static KDA_CHECK_BOTH void add_term(const Number& a, const Number& b, Number& sum) {
    const Number step = added(sum.hi, term(a, b));
    sum.hi = step.hi;
    sum.lo = sum.lo + step.lo;
  }
  /// sum += other, of sums as they were added up.
  static KDA_CHECK_BOTH void add_sum(const Number& other, Number& sum) {
    const Number high = numeric::two_sum(sum.hi, other.hi);
    sum.hi = high.hi;
    sum.lo = sum.lo + (other.lo + high.lo);
  }
  static KDA_CHECK_BOTH Number exact(const V& x) { return {x, numeric::broadcast_as<V>(0.0)}; }
  /// Of a number in memory.
  static KDA_CHECK_BOTH Number of(const V& hi, const V& lo) { return {hi, lo}; }
  static KDA_CHECK_BOTH Number pair(const Number& x) { return x; }
};

/// In fp64, fused.
template <class V>
struct DoubleStep {
  using Number = V;
  struct Term {
    V a, b;
  };
  static constexpr bool has_low = false;

  static KDA_CHECK_BOTH Number normalised(const Number& x) { return x; }
  static KDA_CHECK_BOTH V high(const Number& x) { return x; }
  static KDA_CHECK_BOTH Number scaled(const Number& a, const Number& b) { return a * b; }
  static KDA_CHECK_BOTH Number difference(const V& a, const Number& b) { return a - b; }
  static KDA_CHECK_BOTH Number increased(const Number& a, const V& b) { return a + b; }
  static KDA_CHECK_BOTH Number updated(const Number& k, const Number& u, const Number& s) {
    using numeric::fma;
    return fma(k, u, s);
  }

  static KDA_CHECK_BOTH Term term(const Number& a, const Number& b) { return {a, b}; }
  static KDA_CHECK_BOTH numeric::BasicDoubleDouble<V> added(const V& high, const Term& term) {
    using numeric::fma;
    return {fma(term.a, term.b, high), numeric::broadcast_as<V>(0.0)};
  }
  static KDA_CHECK_BOTH V enlarged(const V& magnitude, const Term& term) {
    using numeric::absolute;
    return added(magnitude, {absolute(term.a), absolute(term.b)}).hi;
  }
  static KDA_CHECK_BOTH void add_product(const Number& a, const Number& b, Number& sum, V& magnitude) {
    const Term next = term(a, b);
    sum = added(sum, next).hi;
    magnitude = enlarged(magnitude, next);
  }
  static KDA_CHECK_BOTH void add_term(const Number& a, const Number& b, Number& sum) {
    sum = added(sum, term(a, b)).hi;
  }
  static KDA_CHECK_BOTH void add_sum(const Number& other, Number& sum) { sum = sum + other; }
  static KDA_CHECK_BOTH Number exact(const V& x) { return x; }
  static KDA_CHECK_BOTH Number of(const V& hi, const V&) { return hi; }
  static KDA_CHECK_BOTH numeric::BasicDoubleDouble<V> pair(const Number& x) {
    return {x, numeric::broadcast_as<V>(0.0)};
  }
};

}  // namespace kda_check::kda

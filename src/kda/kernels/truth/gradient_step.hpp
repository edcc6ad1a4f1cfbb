// The arithmetic of the recurrence backwards, with magnitudes (docs/kda.md, "Backward"), as oracle_step.hpp
// has it forwards: for V = double or a pack of doubles, Step one of the steps there. Sums over k run from
// k = 0 upwards. Sums over V keep eight partial sums, of the columns v, v + 8, ..., and add these from the
// first to the last: on the CPU (kernels/truth/gradient_oracle.hpp) and on a GPU
// (cuda/truth/gradient_columns.cuh, gradient_rows.cuh).
//
// Magnitudes, in double precision; M is that of the state in oracle_step.hpp, E_t[v] = |v_t| + sum_k |k_t
// P_t|. D_t is the gradient of S_t, D'_t that of P_t, r_t = D_t^T k_t, w_t = beta_t e_t, y_t = beta_t r_t.
//   of D    N_t = N_leaving,t + |q_t do_t|          of D'   N'_t[k] = |1 - beta k^2| N_t[k] + |beta k| R_t
//           N_leaving,t-1 = e^g_t N'_t,             R_t[v] = max(sum_k |k_t D_t|, sqrt(sum_k k_t^2 Y_t))
// N follows its own contraction as M does, and does not grow with T. Nor does it collapse where elements of D
// happen to cancel: Y is what their squares would be had their terms random signs,
//   Y_t = Y_leaving,t + (q_t do_t)^2,   Y'_t[k] = (1 - beta k^2)^2 Y_t[k] + beta^2 k^2 sum over j != k of
//   k_j^2 Y_t[j],   Y_leaving,t-1 = e^2g_t Y'_t
// What is handed out counts every factor with its own magnitude, |a| mag(b) + mag(a) |b|:
//   of e    E*_t = |v_t| + sum_k |k_t| M(P_t)       of r    R*_t = sum_k |k_t| N_t
//   of dv   |beta| R*                               of dbeta   sum_v R* |e| + |r| E*
//   of dq   sum_v M(S_t) |do_t|                     of dg      sum_v N' |P| + |D'| M(P)
//   of dk   sum_v N |w| + |D| |beta| E* + M(P) |y| + |P| |beta| R*
#pragma once

#include "kda/kernels/truth/oracle_step.hpp"

namespace kda_check::kda {

/// Partial sums of a sum over V.
inline constexpr int partial_sums = 8;

/// e_t and w_t of a column, from the prediction as it was added up.
template <class Step, class V>
struct TokenError {
  typename Step::Number error, write;
  V error_magnitude, write_magnitude;  ///< E* and E

  static KDA_CHECK_BOTH TokenError of(const V& value, const typename Step::Number& sum, const V& terms,
                                      const V& propagated, const typename Step::Number& beta) {
    return of_error(value, Step::difference(value, Step::normalised(sum)), terms, propagated, beta);
  }
  static KDA_CHECK_BOTH TokenError of_error(const V& value, const typename Step::Number& error,
                                            const V& terms, const V& propagated,
                                            const typename Step::Number& beta) {
    using numeric::absolute;
    return {error, Step::scaled(error, beta), absolute(value) + propagated, absolute(value) + terms};
  }
};

/// An element of D with its magnitude N, and of the energy Y.
template <class Step, class V>
struct StateGradient {
  typename Step::Number value;
  V magnitude;

  /// D_t, from what leaves it.
  KDA_CHECK_BOTH StateGradient entered(const typename Step::Number& q, const V& output_gradient) const {
    return {Step::updated(q, Step::exact(output_gradient), value), magnitude + term(q, output_gradient)};
  }
  static KDA_CHECK_BOTH V entered_energy(const V& energy, const typename Step::Number& q,
                                         const V& output_gradient) {
    const V size = term(q, output_gradient);
    return energy + size * size;
  }
  /// D'_t; `terms` are R_t.
  template <class Share>
  KDA_CHECK_BOTH StateGradient before(const typename Step::Number& read, const typename Step::Number& y,
                                      const V& terms, const Share& retained, const Share& erased) const {
    return {Step::updated(read, y, value), updated_magnitude(magnitude, terms, retained, erased)};
  }
  /// What leaves S_t-1, of D'_t.
  KDA_CHECK_BOTH StateGradient leaving(const typename Step::Number& decay, double decay_hi) const {
    return {Step::scaled(value, decay), magnitude * decay_hi};
  }

 private:
  static KDA_CHECK_BOTH V term(const typename Step::Number& q, const V& output_gradient) {
    using numeric::absolute;
    return absolute(Step::high(q)) * absolute(output_gradient);
  }
};

/// The energy that leaves S_t-1, from that of D_t; `along` is sum_k k_t^2 Y_t.
template <class V, class Share>
KDA_CHECK_BOTH V leaving_energy(const V& energy, const V& along, double key, const Share& retained,
                                const Share& erased, double decay) {
  const Share kept2 = retained * retained, erased2 = erased * erased;
  const double key2 = key * key;
  return (energy * kept2 + (along - energy * key2) * erased2) * (decay * decay);
}

/// R_t; squares beyond the range say nothing.
KDA_CHECK_BOTH double residual_terms(double terms, double energy) {
  if (!(energy < 0x1p1000)) return terms;
  const double root = numeric::square_root(energy);
  return terms < root ? root : terms;
}

/// A sum over V: its partial sum of some columns.
template <class Step, class V>
struct PartialSum {
  typename Step::Number sum;
  V magnitude;

  /// a b of two numbers and their magnitudes: of dbeta_t r_t and R*, e_t and E*; of what is read along, erase
  /// * k, P_t and M(P_t), -y_t and its magnitude; of dk_t without that D_t, w_t and E*; of dg_t D'_t, P_t.
  KDA_CHECK_BOTH void add_product(const typename Step::Number& a, const V& a_magnitude,
                                  const typename Step::Number& b, const V& b_magnitude) {
    using numeric::absolute;
    Step::add_term(a, b, sum);
    magnitude = magnitude + (a_magnitude * absolute(Step::high(b)) + absolute(Step::high(a)) * b_magnitude);
  }
  /// dq_t: S_t and M(S_t).
  KDA_CHECK_BOTH void add_query(const typename Step::Number& state, const V& state_magnitude,
                                const V& output_gradient) {
    using numeric::absolute;
    Step::add_term(state, Step::exact(output_gradient), sum);
    magnitude = magnitude + state_magnitude * absolute(output_gradient);
  }
  /// dk_t: D_t, w_t and E*, P_t and M(P_t), -y_t and its magnitude; `strength` is |beta|.
  KDA_CHECK_BOTH void add_key(const StateGradient<Step, V>& gradient, const typename Step::Number& write,
                              const V& error_magnitude, const V& strength,
                              const typename Step::Number& decayed, const V& decayed_magnitude,
                              const typename Step::Number& y, const V& y_magnitude) {
    using numeric::absolute;
    Step::add_term(gradient.value, write, sum);
    Step::add_term(decayed, y, sum);
    magnitude = magnitude +
                (gradient.magnitude * absolute(Step::high(write)) +
                 absolute(Step::high(gradient.value)) * strength * error_magnitude +
                 decayed_magnitude * absolute(Step::high(y)) + absolute(Step::high(decayed)) * y_magnitude);
  }
};

}  // namespace kda_check::kda

// The recurrence backwards in double-double, with magnitudes, for one block of tokens of one head: first
// `replay_in`, which leaves P_t and e_t of every token, then `backward_in` from the last token to the
// first (docs/kda.md, "Backward"). Sums are those of kernels/oracle_step.hpp. Sums over V keep eight partial
// sums, of the lanes l, l + 8, ..., whatever the instruction set, and add them from the first to the last.
//
// Magnitudes, in double precision; M is that of the state in kernels/oracle_step.hpp, E_t[v] = |v_t| + sum_k
// |k_t P_t|. D_t is the gradient of S_t, D'_t that of P_t, r_t = D_t^T k_t, w_t = beta_t e_t, y_t = beta_t
// r_t.
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

#include <algorithm>

#include "kda/kernels/oracle.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Eight lanes on every instruction set: how sums over V are split is part of their result.
inline constexpr int eight_width = static_cast<int>(8 / lanes_per_vector<double>);

/// Adds the lanes of a sum from the first to the last.
template <int W>
KDA_CHECK_INLINE numeric::DoubleDouble sum_of_lanes(const numeric::BasicDoubleDouble<Lanes<double, W>>& x) {
  double hi[Lanes<double, W>::count], lo[Lanes<double, W>::count];
  x.hi.store(hi);
  x.lo.store(lo);
  numeric::DoubleDouble sum{hi[0], lo[0]};
  for (std::size_t lane = 1; lane < Lanes<double, W>::count; ++lane) {
    const numeric::DoubleDouble high = numeric::two_sum(sum.hi, hi[lane]);
    sum.hi = high.hi;
    sum.lo = sum.lo + (lo[lane] + high.lo);
  }
  return numeric::two_sum(sum.hi, sum.lo);
}
template <int W>
KDA_CHECK_INLINE numeric::DoubleDouble sum_of_lanes(const Lanes<double, W>& x) {
  double values[Lanes<double, W>::count];
  x.store(values);
  double sum = values[0];
  for (std::size_t lane = 1; lane < Lanes<double, W>::count; ++lane) sum = sum + values[lane];
  return {sum, 0.0};
}

/// What the backward pass asks of a tile beyond the recurrence.
template <int W>
struct DoubleDoubleGradient : DoubleDoubleTile<W> {
  using typename DoubleDoubleTile<W>::Pack;
  using typename DoubleDoubleTile<W>::Number;
  static KDA_CHECK_INLINE Number exact(const Pack& x) { return {x, Pack::zero()}; }
  /// sum += a * b, as add_product() without the magnitude.
  static KDA_CHECK_INLINE void add_term(const Number& a, const Number& b, Number& sum) {
    const Number step = DoubleDoubleStep<Pack>::added(sum.hi, DoubleDoubleStep<Pack>::term(a, b));
    sum.hi = step.hi;
    sum.lo = sum.lo + step.lo;
  }
};
template <int W>
struct DoubleGradient : DoubleTile<W> {
  using typename DoubleTile<W>::Pack;
  using typename DoubleTile<W>::Number;
  static KDA_CHECK_INLINE Number exact(const Pack& x) { return x; }
  static KDA_CHECK_INLINE void add_term(const Number& a, const Number& b, Number& sum) {
    sum = fma(a, b, sum);
  }
};

KDA_CHECK_INLINE OracleLanes lanes_of(const OracleMatrix& m, std::size_t row = 0) {
  return {m.hi + row * m.stride, m.lo + row * m.stride};
}

/// Row t of the sums in `terms` becomes e_t, and w_t = beta_t e_t.
template <class Tile>
KDA_CHECK_INLINE void finish_prediction(const OracleReplayBlock& block, std::size_t t) {
  using Pack = typename Tile::Pack;
  const OracleLanes error = lanes_of(block.error, t), write = lanes_of(block.write, t);
  double* const propagated = block.error.magnitude + t * block.error.stride;
  double* const terms = block.write.magnitude + t * block.write.stride;
  const typename Tile::Number beta = Tile::broadcast(block.beta, t);
  for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
    const Pack value = Pack::load(block.v + t * block.error.stride + l);
    const typename Tile::Number e = Tile::difference(value, Tile::normalised(Tile::load(error, l)));
    Tile::store(error, l, e);
    Tile::store(write, l, Tile::scaled(e, beta));
    (absolute(value) + Pack::load(propagated + l)).store(propagated + l);
    (absolute(value) + Pack::load(terms + l)).store(terms + l);
  }
}

/// Zeroes the sums of row t, then adds to them row by row.
template <class Tile>
KDA_CHECK_INLINE void clear_sums(const OracleMatrix& sums, double* terms, std::size_t t, std::size_t lanes) {
  using Pack = typename Tile::Pack;
  for (std::size_t l = 0; l < lanes; l += Pack::count) {
    Tile::store(lanes_of(sums, t), l, Tile::zero());
    Pack::zero().store(sums.magnitude + t * sums.stride + l);
    Pack::zero().store(terms + l);
  }
}
template <class Tile>
KDA_CHECK_INLINE void add_to_sums(const OracleMatrix& sums, double* terms, std::size_t t, std::size_t l,
                                  const typename Tile::Number& k, const typename Tile::Number& x,
                                  const typename Tile::Pack& x_magnitude) {
  using Pack = typename Tile::Pack;
  typename Tile::Number sum = Tile::load(lanes_of(sums, t), l);
  Pack magnitude = Pack::load(terms + l);
  Tile::add_product(k, x, sum, magnitude);
  Tile::store(lanes_of(sums, t), l, sum);
  magnitude.store(terms + l);
  double* const propagated = sums.magnitude + t * sums.stride + l;
  (Pack::load(propagated) + absolute(Tile::high(k)) * x_magnitude).store(propagated);
}

/// Row k of P_t from that of S_t-1, and its share of the prediction; P_t starts at row `slot`.
template <class Tile>
KDA_CHECK_INLINE void decay_into(const OracleReplayBlock& block, std::size_t t, std::size_t slot,
                                 std::size_t k, std::size_t l, const typename Tile::Number& s,
                                 const typename Tile::Pack& magnitude) {
  const std::size_t at = t * block.key_dim + k, row = slot + k;
  const typename Tile::Number p = Tile::scaled(s, Tile::broadcast(block.decay, at));
  const typename Tile::Pack decayed = magnitude * block.decay.hi[at];
  Tile::store(lanes_of(block.decayed, row), l, p);
  decayed.store(block.decayed.magnitude + row * block.decayed.stride + l);
  add_to_sums<Tile>(block.error, block.write.magnitude + t * block.write.stride, t, l,
                    Tile::broadcast(block.k, at), p, decayed);
}

template <class Tile>
void replay_in(const OracleReplayBlock& block) {
  using Pack = typename Tile::Pack;
  using Number = typename Tile::Number;
  const std::size_t rows = block.key_dim;
  const auto slot = [&](std::size_t t) { return t % block.slots * rows; };
  const auto terms = [&](std::size_t t) { return block.write.magnitude + t * block.write.stride; };
  clear_sums<Tile>(block.error, terms(0), 0, block.lanes);
  for (std::size_t k = 0; k < rows; ++k)
    for (std::size_t l = 0; l < block.lanes; l += Pack::count)
      decay_into<Tile>(block, 0, slot(0), k, l, Tile::load(lanes_of(block.state, k), l),
                       Pack::load(block.state.magnitude + k * block.state.stride + l));
  for (std::size_t t = 0; t < block.tokens; ++t) {
    finish_prediction<Tile>(block, t);
    const bool last = t + 1 == block.tokens;
    if (!last) clear_sums<Tile>(block.error, terms(t + 1), t + 1, block.lanes);
    const std::size_t from = slot(t), to = slot(t + 1);
    for (std::size_t k = 0; k < rows; ++k) {
      const std::size_t now = t * rows + k, row = from + k;
      const Number key = Tile::broadcast(block.k, now);
      for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
        const Number s = Tile::updated(key, Tile::load(lanes_of(block.write, t), l),
                                       Tile::load(lanes_of(block.decayed, row), l));
        const Pack magnitude =
            Pack::load(block.decayed.magnitude + row * block.decayed.stride + l) * block.retained[now] +
            Pack::load(terms(t) + l) * block.written[now];
        if (last) {
          Tile::store(lanes_of(block.state, k), l, s);
          magnitude.store(block.state.magnitude + k * block.state.stride + l);
        } else {
          decay_into<Tile>(block, t + 1, to, k, l, s, magnitude);
        }
      }
    }
  }
}

/// Sums over V of one row of the key dimension.
template <class Tile>
struct RowSums {
  typename Tile::Number sum = Tile::zero();
  typename Tile::Pack magnitude = Tile::Pack::zero();

  KDA_CHECK_INLINE void store(const OracleMatrix& m, std::size_t row, std::size_t column) const {
    const std::size_t at = row * m.stride + column;
    const numeric::DoubleDouble value = sum_of_lanes(sum);
    m.hi[at] = value.hi;
    m.lo[at] = value.lo;
    m.magnitude[at] = sum_of_lanes(magnitude).hi;
  }
};

/// The gradient of S_t: what leaves it, plus q_t do_t^T; and its share of r_t.
template <class Tile>
KDA_CHECK_INLINE void enter_token(const OracleBackwardBlock& block, std::size_t t, std::size_t k,
                                  std::size_t l, const typename Tile::Number& leaving,
                                  const typename Tile::Pack& leaving_magnitude,
                                  const typename Tile::Pack& leaving_energy) {
  using Pack = typename Tile::Pack;
  const std::size_t at = t * block.key_dim + k;
  const typename Tile::Number q = Tile::broadcast(block.q, at);
  const Pack incoming = Pack::load(block.output_gradient + t * block.gradient.stride + l);
  const typename Tile::Number D = Tile::updated(q, Tile::exact(incoming), leaving);
  const Pack term = absolute(Tile::high(q)) * absolute(incoming), magnitude = leaving_magnitude + term;
  Tile::store(lanes_of(block.gradient, k), l, D);
  magnitude.store(block.gradient.magnitude + k * block.gradient.stride + l);
  double* const energies = block.gradient_energy + k * block.gradient.stride + l;
  const Pack energy = leaving_energy + term * term, key = Tile::high(Tile::broadcast(block.k, at));
  energy.store(energies);
  double* const along = block.residual_energy + t * block.residual.stride + l;
  (Pack::load(along) + key * key * energy).store(along);
  add_to_sums<Tile>(block.residual, block.residual_terms + t * block.residual.stride, t, l,
                    Tile::broadcast(block.k, at), D, magnitude);
}

/// r_t, and with it dv_t = y_t = beta_t r_t and dbeta_t = r_t . e_t.
template <class Tile>
KDA_CHECK_INLINE void finish_residual(const OracleBackwardBlock& block, std::size_t t) {
  using Pack = typename Tile::Pack;
  using Number = typename Tile::Number;
  const OracleLanes residual = lanes_of(block.residual, t), error = lanes_of(block.error, t);
  const Number beta = Tile::broadcast(block.beta, t);
  double *const terms = block.residual_terms + t * block.residual.stride, *const energy =
                                                                              block.residual_energy +
                                                                              t * block.residual.stride;
  for (std::size_t l = 0; l < block.lanes; ++l)  // squares beyond the range say nothing
    if (energy[l] < 0x1p1000) terms[l] = std::max(terms[l], __builtin_sqrt(energy[l]));
  RowSums<Tile> dbeta;
  for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
    const Number r = Tile::normalised(Tile::load(residual, l)), e = Tile::load(error, l);
    const Pack r_magnitude = Pack::load(block.residual.magnitude + t * block.residual.stride + l);
    Tile::store(residual, l, r);
    Tile::store(lanes_of(block.dv, t), l, Tile::scaled(r, beta));
    (r_magnitude * absolute(Tile::high(beta))).store(block.dv.magnitude + t * block.dv.stride + l);
    Tile::add_term(r, e, dbeta.sum);
    dbeta.magnitude = dbeta.magnitude + (r_magnitude * absolute(Tile::high(e)) +
                                         absolute(Tile::high(r)) *
                                             Pack::load(block.error.magnitude + t * block.error.stride + l));
  }
  dbeta.store(block.dbeta, t, 0);
}

/// Row k of token t: its dq, dk, dg, and D leaving S_t-1 on to the token before, if the block has it.
template <class Tile>
KDA_CHECK_INLINE void backward_row(const OracleBackwardBlock& block, std::size_t t, std::size_t k) {
  using Pack = typename Tile::Pack;
  using Number = typename Tile::Number;
  const std::size_t at = t * block.key_dim + k, stride = block.gradient.stride;
  const Number key = Tile::broadcast(block.k, at), decay = Tile::broadcast(block.decay, at);
  const Pack strength = absolute(Tile::high(Tile::broadcast(block.beta, t)));
  const double kept2 = block.retained[at] * block.retained[at],
               written2 = block.written[at] * block.written[at], key2 = block.k.hi[at] * block.k.hi[at];
  RowSums<Tile> dq, dk, dg;
  for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
    const Number P = Tile::load(lanes_of(block.decayed, at), l), w = Tile::load(lanes_of(block.write, t), l);
    const Pack P_magnitude = Pack::load(block.decayed.magnitude + at * stride + l);
    const Pack incoming = Pack::load(block.output_gradient + t * stride + l);
    const Number S = Tile::updated(key, w, P);
    const Pack S_magnitude = P_magnitude * block.retained[at] +
                             Pack::load(block.write.magnitude + t * stride + l) * block.written[at];
    Tile::add_term(S, Tile::exact(incoming), dq.sum);
    dq.magnitude = dq.magnitude + S_magnitude * absolute(incoming);

    const Number D = Tile::load(lanes_of(block.gradient, k), l);
    const Pack D_magnitude = Pack::load(block.gradient.magnitude + k * stride + l);
    const Number y = -Tile::load(lanes_of(block.dv, t), l);
    Tile::add_term(D, w, dk.sum);
    Tile::add_term(P, y, dk.sum);
    dk.magnitude = dk.magnitude +
                   (D_magnitude * absolute(Tile::high(w)) +
                    absolute(Tile::high(D)) * strength * Pack::load(block.error.magnitude + t * stride + l) +
                    P_magnitude * absolute(Tile::high(y)) +
                    absolute(Tile::high(P)) * Pack::load(block.dv.magnitude + t * stride + l));

    const Number before = Tile::updated(key, y, D);
    const Pack before_magnitude = D_magnitude * block.retained[at] +
                                  Pack::load(block.residual_terms + t * stride + l) * block.written[at];
    Tile::add_term(before, P, dg.sum);
    dg.magnitude = dg.magnitude +
                   (before_magnitude * absolute(Tile::high(P)) + absolute(Tile::high(before)) * P_magnitude);

    const Number leaving = Tile::scaled(before, decay);
    const Pack leaving_magnitude = before_magnitude * block.decay.hi[at];
    const Pack energy = Pack::load(block.gradient_energy + k * stride + l),
               along = Pack::load(block.residual_energy + t * stride + l);
    const Pack leaving_energy =
        (energy * kept2 + (along - energy * key2) * written2) * (block.decay.hi[at] * block.decay.hi[at]);
    if (t > 0) {
      enter_token<Tile>(block, t - 1, k, l, leaving, leaving_magnitude, leaving_energy);
    } else {
      Tile::store(lanes_of(block.gradient, k), l, leaving);
      leaving_magnitude.store(block.gradient.magnitude + k * stride + l);
      leaving_energy.store(block.gradient_energy + k * stride + l);
    }
  }
  dq.store(block.dq, t, k);
  dk.store(block.dk, t, k);
  dg.store(block.dg, t, k);
}

template <class Tile>
void backward_in(const OracleBackwardBlock& block) {
  using Pack = typename Tile::Pack;
  const auto clear = [&](std::size_t t) {
    clear_sums<Tile>(block.residual, block.residual_terms + t * block.residual.stride, t, block.lanes);
    std::fill_n(block.residual_energy + t * block.residual.stride, block.lanes, 0.0);
  };
  const std::size_t last = block.tokens - 1;
  clear(last);
  for (std::size_t k = 0; k < block.key_dim; ++k)
    for (std::size_t l = 0; l < block.lanes; l += Pack::count)
      enter_token<Tile>(block, last, k, l, Tile::load(lanes_of(block.gradient, k), l),
                        Pack::load(block.gradient.magnitude + k * block.gradient.stride + l),
                        Pack::load(block.gradient_energy + k * block.gradient.stride + l));
  for (std::size_t t = block.tokens; t-- > 0;) {
    finish_residual<Tile>(block, t);
    if (t > 0) clear(t - 1);
    for (std::size_t k = 0; k < block.key_dim; ++k) backward_row<Tile>(block, t, k);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

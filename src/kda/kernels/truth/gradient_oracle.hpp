// The recurrence backwards in double-double, with magnitudes, for one block of tokens of one head: first
// `replay_in`, which leaves P_t and e_t of every token, then `backward_in` from the last token to the
// first. The arithmetic is that of kernels/truth/gradient_step.hpp.
#pragma once

#include <algorithm>

#include "kda/kernels/truth/gradient_step.hpp"
#include "kda/kernels/truth/oracle.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Eight lanes on every instruction set: how sums over V are split is part of their result.
inline constexpr int eight_width = static_cast<int>(8 / lanes_per_vector<double>);

/// Adds the lanes of a sum from the first to the last.
template <int W>
KDA_CHECK_INLINE numeric::DoubleDouble sum_of_lanes(const numeric::BasicDoubleDouble<Lanes<double, W>>& x) {
  using Step = DoubleDoubleStep<double>;
  double hi[Lanes<double, W>::count], lo[Lanes<double, W>::count];
  x.hi.store(hi);
  x.lo.store(lo);
  numeric::DoubleDouble sum{hi[0], lo[0]};
  for (std::size_t lane = 1; lane < Lanes<double, W>::count; ++lane) Step::add_sum({hi[lane], lo[lane]}, sum);
  return Step::normalised(sum);
}
template <int W>
KDA_CHECK_INLINE numeric::DoubleDouble sum_of_lanes(const Lanes<double, W>& x) {
  double values[Lanes<double, W>::count];
  x.store(values);
  double sum = values[0];
  for (std::size_t lane = 1; lane < Lanes<double, W>::count; ++lane) sum = sum + values[lane];
  return {sum, 0.0};
}

KDA_CHECK_INLINE OracleLanes lanes_of(const OracleMatrix& m, std::size_t row = 0) {
  return {m.hi + row * m.stride, m.lo + row * m.stride};
}

/// Row t of the sums in `terms` becomes e_t, and w_t = beta_t e_t.
template <class Tile, bool has_column_betas>
KDA_CHECK_INLINE void finish_prediction(const OracleReplayBlock& block, std::size_t t) {
  using Pack = typename Tile::Pack;
  const OracleLanes error = lanes_of(block.error, t), write = lanes_of(block.write, t);
  double* const propagated = block.error.magnitude + t * block.error.stride;
  double* const terms = block.write.magnitude + t * block.write.stride;
  for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
    const std::size_t at = t * block.error.stride + l;
    const Pack value = Pack::load(block.v + at);
    const typename Tile::Number exact =
                                    error_of<Tile>(value, block.v_low == nullptr ? nullptr : block.v_low + at,
                                                   Tile::normalised(Tile::load(error, l))),
                                beta = strength_of<Tile, has_column_betas>(block.strength, t, at);
    const auto token = TokenError<Tile, Pack>::of_error(value, exact, Pack::load(terms + l),
                                                        Pack::load(propagated + l), beta);
    Tile::store(error, l, token.error);
    Tile::store(write, l, token.write);
    token.error_magnitude.store(propagated + l);
    token.write_magnitude.store(terms + l);
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
                    Tile::broadcast(block.read, at), p, decayed);
}

template <class Tile, bool has_column_betas>
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
    finish_prediction<Tile, has_column_betas>(block, t);
    const bool last = t + 1 == block.tokens;
    if (!last) clear_sums<Tile>(block.error, terms(t + 1), t + 1, block.lanes);
    const std::size_t from = slot(t), to = slot(t + 1);
    for (std::size_t k = 0; k < rows; ++k) {
      const std::size_t now = t * rows + k, row = from + k;
      const Number key = Tile::broadcast(block.k, now);
      for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
        const Number s = Tile::updated(key, Tile::load(lanes_of(block.write, t), l),
                                       Tile::load(lanes_of(block.decayed, row), l));
        const auto shares = Shares<Tile, has_column_betas>::of(
            block.strength,
            strength_of<Tile, has_column_betas>(block.strength, t, t * block.error.stride + l),
            block.k.hi[now], now);
        const Pack magnitude =
            updated_magnitude(Pack::load(block.decayed.magnitude + row * block.decayed.stride + l),
                              Pack::load(terms(t) + l), shares.retained, shares.written);
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
struct RowSum : PartialSum<Tile, typename Tile::Pack> {
  RowSum() : PartialSum<Tile, typename Tile::Pack>{Tile::zero(), Tile::Pack::zero()} {}

  KDA_CHECK_INLINE void store(const OracleMatrix& m, std::size_t row, std::size_t column) const {
    const std::size_t at = row * m.stride + column;
    const numeric::DoubleDouble value = sum_of_lanes(this->sum);
    m.hi[at] = value.hi;
    m.lo[at] = value.lo;
    m.magnitude[at] = sum_of_lanes(this->magnitude).hi;
  }
};

template <class Tile>
using GradientPack = StateGradient<Tile, typename Tile::Pack>;

/// The gradient of S_t: what leaves it, plus q_t do_t^T; and its share of r_t.
template <class Tile>
KDA_CHECK_INLINE void enter_token(const OracleBackwardBlock& block, std::size_t t, std::size_t k,
                                  std::size_t l, const GradientPack<Tile>& leaving,
                                  const typename Tile::Pack& leaving_energy) {
  using Pack = typename Tile::Pack;
  const std::size_t at = t * block.key_dim + k;
  const typename Tile::Number q = Tile::broadcast(block.q, at);
  const Pack incoming = Pack::load(block.output_gradient + t * block.gradient.stride + l);
  const GradientPack<Tile> D = leaving.entered(q, incoming);
  Tile::store(lanes_of(block.gradient, k), l, D.value);
  D.magnitude.store(block.gradient.magnitude + k * block.gradient.stride + l);
  double* const energies = block.gradient_energy + k * block.gradient.stride + l;
  const Pack energy = GradientPack<Tile>::entered_energy(leaving_energy, q, incoming),
             key = Tile::high(Tile::broadcast(block.k, at));
  energy.store(energies);
  double* const along = block.residual_energy + t * block.residual.stride + l;
  (Pack::load(along) + key * key * energy).store(along);
  add_to_sums<Tile>(block.residual, block.residual_terms + t * block.residual.stride, t, l,
                    Tile::broadcast(block.k, at), D.value, D.magnitude);
}

/// r_t, and with it dv_t = y_t = beta_t r_t and dbeta_t = r_t . e_t, of column betas r_t * e_t.
template <class Tile, bool has_column_betas>
KDA_CHECK_INLINE void finish_residual(const OracleBackwardBlock& block, std::size_t t) {
  using Pack = typename Tile::Pack;
  using Number = typename Tile::Number;
  const OracleLanes residual = lanes_of(block.residual, t), error = lanes_of(block.error, t);
  double *const terms = block.residual_terms + t * block.residual.stride, *const energy =
                                                                              block.residual_energy +
                                                                              t * block.residual.stride;
  for (std::size_t l = 0; l < block.lanes; ++l) terms[l] = residual_terms(terms[l], energy[l]);
  RowSum<Tile> dbeta;
  for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
    const Number r = Tile::normalised(Tile::load(residual, l)), e = Tile::load(error, l);
    const Pack r_magnitude = Pack::load(block.residual.magnitude + t * block.residual.stride + l),
               e_magnitude = Pack::load(block.error.magnitude + t * block.error.stride + l);
    const Number beta = strength_of<Tile, has_column_betas>(block.strength, t, t * block.residual.stride + l);
    Tile::store(residual, l, r);
    Tile::store(lanes_of(block.dv, t), l, Tile::scaled(r, beta));
    (r_magnitude * absolute(Tile::high(beta))).store(block.dv.magnitude + t * block.dv.stride + l);
    if constexpr (has_column_betas) {
      Tile::store(lanes_of(block.dbeta, t), l, Tile::scaled(r, e));
      (r_magnitude * absolute(Tile::high(e)) + absolute(Tile::high(r)) * e_magnitude)
          .store(block.dbeta.magnitude + t * block.dbeta.stride + l);
    } else {
      dbeta.add_product(r, r_magnitude, e, e_magnitude);
    }
  }
  if constexpr (!has_column_betas) dbeta.store(block.dbeta, t, 0);
}

/// Row k of token t: its dq, dk, dg, and D leaving S_t-1 on to the token before, if the block has it.
template <class Tile, bool has_column_betas, bool has_gates>
KDA_CHECK_INLINE void backward_row(const OracleBackwardBlock& block, std::size_t t, std::size_t k) {
  using Pack = typename Tile::Pack;
  using Number = typename Tile::Number;
  const std::size_t at = t * block.key_dim + k, stride = block.gradient.stride;
  const Number key = Tile::broadcast(block.k, at), read = Tile::broadcast(block.read, at),
               decay = Tile::broadcast(block.decay, at);
  const double decay_hi = block.decay.hi[at];
  RowSum<Tile> dq, dk, dg, dread;
  for (std::size_t l = 0; l < block.lanes; l += Pack::count) {
    const Number P = Tile::load(lanes_of(block.decayed, at), l), w = Tile::load(lanes_of(block.write, t), l);
    const Pack P_magnitude = Pack::load(block.decayed.magnitude + at * stride + l);
    const Pack incoming = Pack::load(block.output_gradient + t * stride + l);
    const Number beta = strength_of<Tile, has_column_betas>(block.strength, t, t * stride + l);
    const auto shares = Shares<Tile, has_column_betas>::of(block.strength, beta, block.k.hi[at], at);
    const Pack S_magnitude = updated_magnitude(
        P_magnitude, Pack::load(block.write.magnitude + t * stride + l), shares.retained, shares.written);
    dq.add_query(Tile::updated(key, w, P), S_magnitude, incoming);

    const GradientPack<Tile> D{Tile::load(lanes_of(block.gradient, k), l),
                               Pack::load(block.gradient.magnitude + k * stride + l)};
    const Number y = -Tile::load(lanes_of(block.dv, t), l);
    const Pack E = Pack::load(block.error.magnitude + t * stride + l),
               y_magnitude = Pack::load(block.dv.magnitude + t * stride + l);
    if constexpr (has_gates) {
      dk.add_product(D.value, D.magnitude, w, E);
      dread.add_product(P, P_magnitude, y, y_magnitude);
    } else {
      dk.add_key(D, w, E, absolute(Tile::high(beta)), P, P_magnitude, y, y_magnitude);
    }

    const GradientPack<Tile> before =
        D.before(read, y, Pack::load(block.residual_terms + t * stride + l), shares.retained, shares.erased);
    dg.add_product(before.value, before.magnitude, P, P_magnitude);

    const GradientPack<Tile> leaving = before.leaving(decay, decay_hi);
    const Pack energy = leaving_energy(Pack::load(block.gradient_energy + k * stride + l),
                                       Pack::load(block.residual_energy + t * stride + l), block.k.hi[at],
                                       shares.retained, shares.erased, decay_hi);
    if (t > 0) {
      enter_token<Tile>(block, t - 1, k, l, leaving, energy);
    } else {
      Tile::store(lanes_of(block.gradient, k), l, leaving.value);
      leaving.magnitude.store(block.gradient.magnitude + k * stride + l);
      energy.store(block.gradient_energy + k * stride + l);
    }
  }
  dq.store(block.dq, t, k);
  dk.store(block.dk, t, k);
  if constexpr (has_gates) dread.store(block.dread, t, k);
  dg.store(block.dg, t, k);
}

template <class Tile, bool has_column_betas, bool has_gates>
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
      enter_token<Tile>(block, last, k, l,
                        {Tile::load(lanes_of(block.gradient, k), l),
                         Pack::load(block.gradient.magnitude + k * block.gradient.stride + l)},
                        Pack::load(block.gradient_energy + k * block.gradient.stride + l));
  for (std::size_t t = block.tokens; t-- > 0;) {
    finish_residual<Tile, has_column_betas>(block, t);
    if (t > 0) clear(t - 1);
    for (std::size_t k = 0; k < block.key_dim; ++k)
      backward_row<Tile, has_column_betas, has_gates>(block, t, k);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

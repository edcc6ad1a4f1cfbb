// The recurrence in double-double, with magnitudes, for one tile of V lanes of one head's state; the
// arithmetic of each step is that of kernels/truth/oracle_step.hpp.
#pragma once

#include <type_traits>
#include <utility>

#include "kda/kernels/lanes/lanes.hpp"
#include "kda/kernels/table.hpp"
#include "kda/kernels/truth/oracle_step.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <int W>
struct DoubleDoubleTile : DoubleDoubleStep<Lanes<double, W>> {
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
};

template <int W>
struct DoubleTile : DoubleStep<Lanes<double, W>> {
  using Pack = Lanes<double, W>;
  using Number = Pack;

  static KDA_CHECK_INLINE Number broadcast(OracleRows x, std::size_t i) { return Pack::broadcast(x.hi[i]); }
  static KDA_CHECK_INLINE Number load(OracleLanes x, std::size_t i) { return Pack::load(x.hi + i); }
  static KDA_CHECK_INLINE void store(OracleLanes x, std::size_t i, const Number& value) {
    value.store(x.hi + i);
    Pack::zero().store(x.lo + i);
  }
  static KDA_CHECK_INLINE Number zero() { return Pack::zero(); }
};

/// The betas of a row of values, in front of lane `at` of it, or that of the token.
template <class Tile, bool has_column_betas>
KDA_CHECK_INLINE typename Tile::Number strength_of(const OracleStrength& strength, std::size_t t,
                                                   std::size_t at) {
  if constexpr (has_column_betas) {
    const OracleRows& x = strength.column_beta;
    return Tile::of(Tile::Pack::load(x.hi + at), Tile::Pack::load(x.lo + at));
  } else {
    return Tile::broadcast(strength.beta, t);
  }
}

/// What of a row of the state a token keeps, writes and, backwards, erases: for magnitudes.
template <class Tile, bool has_column_betas>
struct Shares {
  using Share = std::conditional_t<has_column_betas, typename Tile::Pack, double>;
  Share retained, written, erased;

  static KDA_CHECK_INLINE Shares of(const OracleStrength& strength, const typename Tile::Number& beta,
                                    double key, std::size_t at) {
    if constexpr (has_column_betas) {
      using Pack = typename Tile::Pack;
      const Pack high = Tile::high(beta), share = absolute(high * key);
      return {absolute(Pack::broadcast(1.0) - high * key * key), share, share};
    } else {
      return {strength.retained[at], strength.written[at], strength.erased[at]};
    }
  }
};

/// e_t: of write * v not all digits are in its high part.
template <class Tile>
KDA_CHECK_INLINE typename Tile::Number error_of(const typename Tile::Pack& value, const double* value_low,
                                                const typename Tile::Number& prediction) {
  const typename Tile::Number error = Tile::difference(value, prediction);
  return value_low == nullptr ? error : Tile::increased(error, Tile::Pack::load(value_low));
}

/// The error of a tile in fp64, if it is asked for.
template <class Tile>
class TileError {
 public:
  using Pack = typename Tile::Pack;
  static constexpr bool is_bounded = !Tile::has_low;

  KDA_CHECK_INLINE explicit TileError(const OracleBlock& block)
      : at_(block.error), K_(static_cast<double>(block.key_dim)) {
    if constexpr (is_bounded)
      if (at_.columns != nullptr) column_.of_state = Pack::load(at_.columns);
  }
  /// Of one more row of P.
  KDA_CHECK_INLINE void add_square(const typename Tile::Number& decayed) {
    if constexpr (is_bounded) squares_ = fma(decayed, decayed, squares_);
  }
  KDA_CHECK_INLINE void advance(std::size_t t, const typename Tile::Number& beta, const Pack& read_magnitude,
                                const typename Tile::Number& error) {
    if constexpr (is_bounded)
      if (at_.columns != nullptr)
        column_.advance(at_.tokens[t], K_, beta, std::exchange(squares_, Pack::zero()), read_magnitude,
                        error);
  }
  KDA_CHECK_INLINE void add_output(std::size_t t, const Pack& magnitude) {
    if constexpr (is_bounded)
      if (at_.columns != nullptr)
        output_ = column_.larger(output_, column_.of_output(at_.tokens[t], K_, magnitude));
  }
  template <class Share>
  KDA_CHECK_INLINE void add_element(double decay, const Share& written, const typename Tile::Number& decayed,
                                    const Pack& magnitude) {
    if constexpr (is_bounded)
      state_ = column_.larger(state_, column_.of_element(decay, written, decayed, magnitude));
  }
  KDA_CHECK_INLINE void store() const {
    if constexpr (is_bounded) {
      if (at_.columns == nullptr) return;
      column_.of_state.store(at_.columns);
      *at_.of_output = largest(output_, *at_.of_output), *at_.of_state = largest(state_, 0);
    }
  }

 private:
  static double largest(const Pack& x, double most) {
    double lanes[Pack::count];
    x.store(lanes);
    for (const double lane : lanes) most = lane > most ? lane : most;
    return most;
  }

  const OracleError at_;
  const double K_;
  ColumnError<Pack> column_{Pack::zero()};
  Pack squares_ = Pack::zero(), output_ = Pack::zero(), state_ = Pack::zero();
};

/// `reads_along_key`: block.read is block.k.
template <class Tile, bool has_column_betas, bool reads_along_key>
KDA_CHECK_INLINE void oracle_tile(const OracleBlock& block) {
  const OracleRows& read = reads_along_key ? block.k : block.read;
  using Pack = typename Tile::Pack;
  using Number = typename Tile::Number;
  const std::size_t rows = block.key_dim;
  Number prediction = Tile::zero();
  Pack prediction_magnitude = Pack::zero();
  TileError<Tile> errors(block);
  for (std::size_t k = 0; k < rows; ++k) {
    const std::size_t at = k * Pack::count;
    const Number p = Tile::scaled(Tile::load(block.state, at), Tile::broadcast(block.decay, k));
    Tile::store(block.state, at, p);
    (Pack::load(block.state_magnitude + at) * block.decay.hi[k]).store(block.state_magnitude + at);
    Tile::add_product(Tile::broadcast(read, k), p, prediction, prediction_magnitude);
    errors.add_square(p);
  }
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t now = t * rows, next = now + rows;
    const bool last = t + 1 == block.tokens;
    const Pack value = Pack::load(block.v + t * block.value_stride);
    const std::size_t values = t * block.value_stride;
    const Number error = error_of<Tile>(value, block.v_low == nullptr ? nullptr : block.v_low + values,
                                        Tile::normalised(prediction));  // e_t = v_t - P_t^T k_t
    const Number beta = strength_of<Tile, has_column_betas>(block.strength, t, values);
    errors.advance(t, beta, prediction_magnitude, error);
    const Number write = Tile::scaled(error, beta);
    const Pack write_magnitude = absolute(value) + prediction_magnitude;
    Number output = Tile::zero();
    Pack output_magnitude = Pack::zero();
    prediction = Tile::zero();
    prediction_magnitude = Pack::zero();
    for (std::size_t k = 0; k < rows; ++k) {
      const std::size_t at = k * Pack::count;
      const Number decayed = Tile::load(block.state, at);
      Number s = Tile::updated(Tile::broadcast(block.k, now + k), write, decayed);
      const auto shares =
          Shares<Tile, has_column_betas>::of(block.strength, beta, block.k.hi[now + k], now + k);
      Pack magnitude = updated_magnitude(Pack::load(block.state_magnitude + at), write_magnitude,
                                         shares.retained, shares.written);
      Tile::add_product(Tile::broadcast(block.q, now + k), s, output, output_magnitude);
      if (!last) {
        s = Tile::scaled(s, Tile::broadcast(block.decay, next + k));
        magnitude = magnitude * block.decay.hi[next + k];
        Tile::add_product(Tile::broadcast(read, next + k), s, prediction, prediction_magnitude);
        errors.add_square(s);
      } else {
        errors.add_element(block.decay.hi[now + k], shares.written, decayed, magnitude);
      }
      Tile::store(block.state, at, s);
      magnitude.store(block.state_magnitude + at);
    }
    Tile::store(block.o, t * block.value_stride, Tile::normalised(output));
    output_magnitude.store(block.o_magnitude + t * block.value_stride);
    errors.add_output(t, output_magnitude);
  }
  errors.store();
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

// The gate of docs/kda.md and its derivatives in double-double, for V = double or a pack of doubles: y is the
// raw gate with its bias, A = exp(a) the amplitude of the value head.
//
// Exact to 2^-97 wherever the result is normal, though exp(a) or exp(y) alone may be beyond the range of a
// double: exp(800) softplus(-800) is 1. At infinities the limit, where there is one; NaN where y and a pull
// different ways, as in exp(inf) softplus(-inf).
#pragma once

#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

template <class V>
class GateFunctions {
 public:
  using Number = numeric::BasicDoubleDouble<V>;

  KDA_CHECK_BOTH explicit GateFunctions(double a) : a_(a), amplitude_(a) {}

  /// Log decay of the softplus gate: -A softplus(y).
  KDA_CHECK_BOTH Number softplus(const Number& y) const { return -amplified(numeric::softplus(y), y); }
  /// Its slope by y: -A sigmoid(y).
  KDA_CHECK_BOTH Number softplus_slope(const Number& y) const { return -amplified(numeric::sigmoid(y), y); }

  /// Log decay of the bounded gate: bound sigmoid(A y).
  KDA_CHECK_BOTH Number bounded(const Number& y, double bound) const {
    return numeric::sigmoid(amplitude_ * y) * of(bound);
  }
  /// Its slope by y: bound A s (1 - s), s = sigmoid(A y).
  KDA_CHECK_BOTH Number bounded_slope(const Number& y, double bound) const {
    const Number x = amplitude_ * y, small = numeric::negative_magnitude(x);
    const Number falloff = numeric::sigmoid(x) * numeric::sigmoid(-x);
    // Between the two only the order of the factors differs.
    const Number near = -far_out < a_ && a_ < far_out ? (amplitude_ * Number{of(bound), of(0)}) * falloff
                                                      : amplitude_ * (falloff * of(bound));
    // s (1 - s) = e / (1 + e)^2 with e = exp(-|x|): beyond the range A e is formed at once.
    const Number far = numeric::exp(small + of(a_)) * of(bound);
    const Number finite = select(small.hi < of(-far_out), far, near);
    return select(small.hi < of(-numeric::detail::largest_double), Number{of(0), of(0)}, finite);
  }
  /// Its slope by a: bound x s (1 - s), x = A y.
  KDA_CHECK_BOTH Number bounded_amplitude_slope(const Number& y, double bound) const {
    const Number x = amplitude_ * y, zero{of(0), of(0)};
    const Number finite = x * (numeric::sigmoid(x) * numeric::sigmoid(-x)) * of(bound);
    return select(numeric::detail::is_infinite(x.hi), zero, finite);
  }

 private:
  static constexpr double far_out = 600;

  static KDA_CHECK_BOTH V of(double x) { return numeric::broadcast_as<V>(x); }

  /// A f(y), where f(y) is exp(y) to all digits far out on the left.
  KDA_CHECK_BOTH Number amplified(const Number& f, const Number& y) const {
    using numeric::all;
    const Number near = amplitude_ * f;
    if (all(y.hi >= of(-far_out))) return near;
    const V high = y.hi + of(a_);
    const Number exponent = select(numeric::detail::is_infinite(high), Number{high, of(0)}, y + of(a_));
    return select(y.hi < of(-far_out), numeric::exp(exponent), near);
  }

  double a_;
  numeric::ExpFactor<V> amplitude_;
};

}  // namespace kda_check::kda

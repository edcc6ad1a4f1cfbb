// Decays e^g, rounded to fp64, from pairs that are right to some 62 bits: what the double-double functions
// have in their high parts, at a tenth of the cost, and whether it surely is that. Where it may not be, or
// something is out of the ordinary, those have to be asked.
#pragma once

#include "kda/kernels/truth/gate_functions.hpp"
#include "numeric/elementary_steps.hpp"

namespace kda_check::kda {

template <class V>
class DecaySteps {
 public:
  using Number = numeric::BasicDoubleDouble<V>;

  /// Of a value head: its A_log; the bound of a bounded gate.
  KDA_CHECK_INLINE DecaySteps(double a, double bound)
      : largest_(of(-half_range < a && a < half_range ? 2 * half_range : -1)),
        amplitude_(numeric::detail::spread<V>(
            numeric::exp(numeric::DoubleDouble{-half_range < a && a < half_range ? a : 0.0}))),
        bound_(of(bound)) {}

  /// g as it is stored.
  KDA_CHECK_INLINE auto stored(const V& g) const { return decay({g, of(0)}, of(0), g); }
  /// g = -A softplus(y).
  KDA_CHECK_INLINE auto softplus(const Number& y) const {
    const Number e = falling(y), one_more = one_and(e);
    const auto logarithm = numeric::detail::log_terms(one_more.hi, one_more.lo);
    const Number positive = select(y.hi > of(0), y, Number{of(0), of(0)});
    const Number high = numeric::two_sum(positive.hi, logarithm.hi);
    const Number sum = numeric::quick_two_sum(high.hi, high.lo + (logarithm.lo + positive.lo));
    const V error = logarithm.error + absolute(logarithm.hi) * of(2 * of_exponential);
    return decay(-product(amplitude_, sum), amplitude_.hi * error, y.hi);
  }
  /// g = bound sigmoid(A y).
  KDA_CHECK_INLINE auto bounded(const Number& y) const {
    const Number x = product(amplitude_, y), e = falling(x), one_more = one_and(e);
    const Number over = select(x.hi > of(0), Number{of(1), of(0)}, e);
    const V quotient = over.hi / one_more.hi;
    const V rest = (fma(-quotient, one_more.hi, over.hi) + over.lo) - quotient * one_more.lo;
    const Number g = product({bound_, of(0)}, numeric::quick_two_sum(quotient, rest / one_more.hi));
    return decay(g, absolute(g.hi) * of(4 * of_exponential), x.hi);
  }

 private:
  static constexpr double half_range = 300;
  static constexpr double of_exponential = 0x1p-65;  ///< the relative error of falling()

  static KDA_CHECK_INLINE V of(double x) { return numeric::broadcast_as<V>(x); }
  static KDA_CHECK_INLINE Number product(const Number& a, const Number& b) {
    const Number high = numeric::two_product(a.hi, b.hi);
    return numeric::quick_two_sum(high.hi, high.lo + (a.hi * b.lo + a.lo * b.hi));
  }
  /// exp(-|x|), |x| <= 600.
  static KDA_CHECK_INLINE Number falling(const Number& x) {
    const Number small = numeric::negative_magnitude(x);
    const auto terms = numeric::detail::exp_terms(small.hi, small.lo);
    using numeric::power_from_bits;
    const V scale = power_from_bits<7>(terms.shifted);
    return numeric::quick_two_sum(terms.hi * scale, terms.lo * scale);
  }
  static KDA_CHECK_INLINE Number one_and(const Number& e) {
    const Number sum = numeric::two_sum(of(1), e.hi);
    return {sum.hi, sum.lo + e.lo};
  }
  /// e^g, |g - its exact value| <= error. `through`: what else has to be ordinary.
  KDA_CHECK_INLINE auto decay(const Number& g, const V& error, const V& through) const {
    using numeric::both, numeric::power_from_bits;
    const auto terms = numeric::detail::exp_terms(g.hi, g.lo);
    const V of_all = of(numeric::detail::power_error) + (error + absolute(g.lo) * of(0x1p-16)) * of(2);
    auto rounded = numeric::detail::rounded_surely(terms.hi, terms.lo, of_all);
    rounded.value = rounded.value * power_from_bits<7>(terms.shifted);
    rounded.sure = both(rounded.sure, both(largest_ >= absolute(g.hi), largest_ >= absolute(through)));
    return rounded;
  }

  V largest_;  ///< of g, and of what is exponentiated on the way
  Number amplitude_;
  V bound_;
};

}  // namespace kda_check::kda

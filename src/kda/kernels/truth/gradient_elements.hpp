// One element of a gradient in double-double on its way from the recurrence to the tensor as it is stored:
// the slopes of gate and sigmoid, the chain rules, sums with their magnitudes. On the CPU (gradient_sums.cpp)
// and on a GPU (cuda/truth/gradient_chain.cu); the order of sums is the caller's.
#pragma once

#include "kda/kernels/truth/gate_functions.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::kda {

/// Nothing times a slope is nothing, also where the slope is beyond the range: a gate that has gone to -inf
/// forgets everything, however steep it is there.
KDA_CHECK_BOTH double product_with_slope(double x, double slope) { return x == 0 ? 0.0 : x * slope; }

/// A gradient in the making; `chunk` is its chunk_magnitude, `squares` the square of its spread
/// (kda/truth/gradient_oracle.hpp).
struct GradientSum {
  numeric::DoubleDouble value;
  double magnitude = 0, chunk = 0;
  numeric::ProductSum squares{};

  KDA_CHECK_BOTH_CALLED void add(const GradientSum& term) {
    value = value + term.value;
    magnitude += term.magnitude;
    chunk += term.chunk;
    squares.add(term.squares);
  }
  KDA_CHECK_BOTH_CALLED GradientSum times(numeric::DoubleDouble factor) const {
    const double size = numeric::absolute(factor.hi);
    const numeric::DoubleDouble product = numeric::detail::is_infinite(factor.hi)
                                              ? numeric::DoubleDouble{product_with_slope(value.hi, factor.hi)}
                                              : value * factor;
    GradientSum result{product, product_with_slope(magnitude, size), product_with_slope(chunk, size),
                       squares};
    if (!result.squares.is_zero()) result.squares.scale(size);
    return result;
  }
};

/// d log decay / d A_log of the softplus gate, g = -exp(A) softplus(y): g itself. Zero where that is -inf,
/// which it stays whatever the amplitude.
KDA_CHECK_BOTH numeric::DoubleDouble softplus_amplitude_slope(numeric::DoubleDouble log_decay) {
  return log_decay.hi < -numeric::detail::largest_double ? numeric::DoubleDouble{} : log_decay;
}
/// The same of the bounded gate, g = bound sigmoid(exp(A) y): y dg / dy, from that slope.
KDA_CHECK_BOTH numeric::DoubleDouble bounded_amplitude_slope(const GateFunctions<double>& gate,
                                                             numeric::DoubleDouble y,
                                                             numeric::DoubleDouble slope, double bound) {
  if (numeric::detail::is_infinite(slope.hi)) return gate.bounded_amplitude_slope(y, bound);
  return slope.hi == 0 ? numeric::DoubleDouble{} : slope * y;
}

/// d beta / d stored beta.
KDA_CHECK_BOTH numeric::DoubleDouble strength_slope(double stored, bool sigmoid, bool allow_neg_eigval) {
  if (!sigmoid) return {1.0, 0.0};
  return numeric::sigmoid(numeric::DoubleDouble{stored}) * numeric::sigmoid(numeric::DoubleDouble{-stored}) *
         (allow_neg_eigval ? 2.0 : 1.0);
}

/// What one channel of q and k adds to the sums of the chunk form, which has dG = q dq - k dk: what it
/// cancels. q with its scale.
KDA_CHECK_BOTH double chunk_terms(double q, double dq_magnitude, double k, double dk_magnitude) {
  return numeric::absolute(q) * dq_magnitude + numeric::absolute(k) * dk_magnitude;
}

/// dbeta's share of a column in its spread: |r| E + R |e|.
KDA_CHECK_BOTH double strength_terms(double residual_terms, double error, double residual,
                                     double error_terms) {
  return residual_terms * numeric::absolute(error) + numeric::absolute(residual) * error_terms;
}

/// Through the L2 norm: `along` is the sum of dy y over the row.
KDA_CHECK_BOTH GradientSum through_norm(const GradientSum& along, const GradientSum& dy,
                                        numeric::DoubleDouble y, numeric::DoubleDouble reciprocal_norm) {
  GradientSum dx = along.times(-y);
  dx.add(dy);
  return dx.times(reciprocal_norm);
}

}  // namespace kda_check::kda

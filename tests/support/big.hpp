// MPFR numbers with operators, for truths. 200 bits unless said.
#pragma once

#include <mpfr.h>

#include <utility>

#include "numeric/double_double.hpp"

namespace kda_check::test {

class Big {
 public:
  static constexpr mpfr_prec_t precision = 200;

  Big() { mpfr_init2(value_, precision), mpfr_set_zero(value_, 1); }
  Big(double x) {
    mpfr_init2(value_, precision), mpfr_set_d(value_, x, MPFR_RNDN);
  }  // NOLINT: numbers convert
  explicit Big(numeric::DoubleDouble x) : Big(x.hi) { mpfr_add_d(value_, value_, x.lo, MPFR_RNDN); }
  Big(const Big& other) { mpfr_init2(value_, precision), mpfr_set(value_, other.value_, MPFR_RNDN); }
  Big& operator=(const Big& other) {
    mpfr_set(value_, other.value_, MPFR_RNDN);
    return *this;
  }
  ~Big() { mpfr_clear(value_); }

  double to_double() const { return mpfr_get_d(value_, MPFR_RNDN); }
  float to_float() const { return mpfr_get_flt(value_, MPFR_RNDN); }
  mpfr_srcptr raw() const { return value_; }
  bool is_zero() const { return mpfr_zero_p(value_) != 0; }

  friend Big operator+(const Big& a, const Big& b) { return with(mpfr_add, a, b); }
  friend Big operator-(const Big& a, const Big& b) { return with(mpfr_sub, a, b); }
  friend Big operator*(const Big& a, const Big& b) { return with(mpfr_mul, a, b); }
  friend Big operator/(const Big& a, const Big& b) { return with(mpfr_div, a, b); }
  friend Big operator-(const Big& a) { return with(mpfr_neg, a); }
  friend bool operator<(const Big& a, const Big& b) { return mpfr_less_p(a.value_, b.value_) != 0; }
  friend Big exp(const Big& a) { return with(mpfr_exp, a); }
  friend Big exp2(const Big& a) { return with(mpfr_exp2, a); }
  friend Big log(const Big& a) { return with(mpfr_log, a); }
  friend Big log1p(const Big& a) { return with(mpfr_log1p, a); }
  friend Big cos(const Big& a) { return with(mpfr_cos, a); }
  friend Big sqrt(const Big& a) { return with(mpfr_sqrt, a); }
  friend Big abs(const Big& a) { return with(mpfr_abs, a); }

 private:
  template <class Function>
  static Big with(Function function, const Big& a, const Big& b) {
    Big result;
    function(result.value_, a.value_, b.value_, MPFR_RNDN);
    return result;
  }
  template <class Function>
  static Big with(Function function, const Big& a) {
    Big result;
    function(result.value_, a.value_, MPFR_RNDN);
    return result;
  }
  mpfr_t value_;
};

inline Big sigmoid(const Big& x) { return Big(1.0) / (Big(1.0) + exp(-x)); }
inline Big softplus(const Big& x) { return Big(0.0) < x ? x + log1p(exp(-x)) : log1p(exp(x)); }

/// |approximate - exact| / |exact|; 0 when both are 0.
inline double relative_error(numeric::DoubleDouble approximate, const Big& exact) {
  const Big difference = abs(Big(approximate) - exact);
  if (difference.is_zero()) return 0;
  return (difference / abs(exact)).to_double();
}

}  // namespace kda_check::test

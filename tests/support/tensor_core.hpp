// The rules of a tensor core's sums (docs/arithmetic.md) once more, in integers, and numbers to hold them on.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kda/cast_points.hpp"
#include "support/random.hpp"

namespace kda_check::test {

using kda::Rounding;

__extension__ typedef __int128 Integer;

inline constexpr std::uint32_t not_a_number = 0x7fff'ffff, infinite = 0x7f80'0000, sign_bit = 0x8000'0000;

/// The rules once more, from bit patterns and in integers.
class Ruled {
 public:
  Ruled(int bits, Rounding operands, bool narrow_sum = false)
      : bits_(bits), least_(operands == Rounding::fp16 ? -14 : -126), narrow_sum_(narrow_sum) {}

  float operator()(std::span<const float> a, std::span<const float> b, float c) const {
    bool is_nan = false, up = false, down = false;
    std::vector<Term> terms;
    const auto add = [&](Term term) {
      if (term.digits != 0) terms.push_back(term);
    };
    const Number start = number(c, narrow_sum_ ? -14 : -126);
    if (start.is_nan) is_nan = true;
    if (start.is_infinite) (start.is_negative ? down : up) = true;
    if (!start.is_nan && !start.is_infinite)
      add({start.is_negative ? -Integer(start.digits) : Integer(start.digits), start.place, start.exponent});
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Number x = number(a[i], least_), y = number(b[i], least_);
      const bool is_negative = x.is_negative != y.is_negative;
      if (x.is_nan || y.is_nan || (x.is_infinite && y.is_zero()) || (x.is_zero() && y.is_infinite)) {
        is_nan = true;
      } else if (x.is_infinite || y.is_infinite) {
        (is_negative ? down : up) = true;
      } else {
        const Integer product = Integer(x.digits) * y.digits;
        add({is_negative ? -product : product, x.place + y.place, x.exponent + y.exponent});
      }
    }
    if (is_nan || (up && down)) return std::bit_cast<float>(not_a_number);
    if (up || down) return std::bit_cast<float>(infinite | (down ? sign_bit : 0));
    if (terms.empty()) return 0;
    int largest = -10000;
    for (const Term& term : terms) largest = std::max(largest, term.exponent);
    const int unit = largest - bits_;
    Integer sum = 0;
    for (const Term& term : terms) sum += shifted(term.digits, term.place - unit);
    return narrow_sum_ ? to_fp16(sum, unit) : to_fp32(sum, unit);
  }

 private:
  struct Number {
    bool is_negative, is_nan = false, is_infinite = false;
    std::int64_t digits = 0;
    int place = 0, exponent = 0;  ///< of the last digit; that the number counts with
    bool is_zero() const { return digits == 0 && !is_nan && !is_infinite; }
  };
  struct Term {
    Integer digits;
    int place, exponent;
  };

  /// A number of a format whose smallest exponent is `least`, widened to fp32.
  static Number number(float x, int least) {
    const auto pattern = std::bit_cast<std::uint32_t>(x);
    const auto field = static_cast<int>(pattern >> 23 & 0xff);
    const std::int64_t fraction = pattern & 0x7f'ffff;
    Number result{(pattern & sign_bit) != 0};
    if (field == 255) {
      (fraction != 0 ? result.is_nan : result.is_infinite) = true;
      return result;
    }
    result.digits = field == 0 ? fraction : fraction + 0x80'0000;
    result.place = std::max(field, 1) - 127 - 23;
    result.exponent = std::max(field - 127, least);
    return result;
  }
  /// x 2^places, towards zero.
  static Integer shifted(Integer x, int places) {
    if (places >= 0) return x * (Integer(1) << places);
    if (places < -100) return 0;
    return x / (Integer(1) << -places);
  }
  static float with_sign(bool is_negative, double magnitude) {
    return static_cast<float>(is_negative ? -magnitude : magnitude);
  }
  static float to_fp32(Integer sum, int unit) {
    const bool is_negative = sum < 0;
    Integer digits = is_negative ? -sum : sum;
    int place = unit;
    for (; digits >= 1 << 24 || (place < -149 && digits != 0); ++place) digits /= 2;
    if (digits == 0) return 0;
    return with_sign(is_negative, std::ldexp(static_cast<double>(digits), place));  // 2^128 gives infinity
  }
  static float to_fp16(Integer sum, int unit) {
    const bool is_negative = sum < 0;
    Integer digits = is_negative ? -sum : sum;
    int place = unit;
    bool half = false, less = false;
    for (; digits >= 1 << 11 || (place < -24 && (digits != 0 || half)); ++place) {
      less = less || half;
      half = digits % 2 != 0;
      digits /= 2;
    }
    if (half && (less || digits % 2 != 0)) digits += 1;
    if (digits == 0) return 0;
    const double magnitude = std::ldexp(static_cast<double>(digits), place);
    return with_sign(is_negative, magnitude > 65504 ? HUGE_VAL : magnitude);
  }

  int bits_, least_;
  bool narrow_sum_;
};

inline float ruled_chain(const Ruled& rule, std::size_t together, std::span<const float> a,
                         std::span<const float> b, float c) {
  for (std::size_t from = 0; from < a.size(); from += together) {
    const std::size_t count = std::min(together, a.size() - from);
    c = rule(a.subspan(from, count), b.subspan(from, count), c);
  }
  return c;
}

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline bool same(float x, float y) { return bits_of(x) == bits_of(y); }

// What kinds of numbers are drawn. Exponents are those stored.

struct Layout {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int top() const { return (1 << exponent_bits) - 2; }
};
inline constexpr Layout fp32_layout{8, 23}, fp16_layout{5, 10};
inline Layout layout_of(Rounding format) {
  switch (format) {
    case Rounding::bf16:
      return {8, 7};
    case Rounding::fp16:
      return fp16_layout;
    case Rounding::tf32:
      return {8, 10};
    case Rounding::none:
      break;
  }
  return fp32_layout;
}

enum class Kind {
  finite,        ///< any finite pattern
  bottom,        ///< sums at the bottom of fp32's range, or of fp16's
  subnormal,     ///< subnormal numbers times ordinary ones
  extremes,      ///< zeros beside the least and the greatest
  overflow,      ///< sums about the largest number
  special,       ///< infinities and NaN among others
  signed_zeros,  ///< nothing but zeros
  ordinary,
  tiny,  ///< products that are below every place of fp32 but for a few
};
inline constexpr std::array kinds{Kind::finite,       Kind::bottom,   Kind::subnormal,
                                  Kind::extremes,     Kind::overflow, Kind::special,
                                  Kind::signed_zeros, Kind::ordinary, Kind::tiny};

class Draw {
 public:
  Draw(Random& random, Rounding format, bool narrow_sum)
      : random_(random), format_(layout_of(format)), sum_(narrow_sum ? fp16_layout : fp32_layout) {}

  float left(Kind kind) {
    const int bias = format_.bias(), top = format_.top();
    switch (kind) {
      case Kind::finite:
        return operand(below(top + 1));
      case Kind::bottom:
        return operand(below(4));
      case Kind::subnormal:
        return operand(one_in(3) ? below(12) : 0);
      case Kind::extremes:
        return one_in(2) ? operand(0, 0) : one_in(2) ? operand(below(2), 1) : operand(top - below(6));
      case Kind::overflow:
        return operand(half_of_top() + below(2));
      case Kind::special:
        return one_in(24) ? operand(top + 1, one_in(2) ? 0 : 1) : one_in(12) ? operand(0, 0) : near_one();
      case Kind::signed_zeros:
        return operand(0, 0);
      case Kind::tiny:
        return operand(below(bias / 2));
      case Kind::ordinary:
        break;
    }
    return near_one();
  }
  float right(Kind kind) {
    const int bias = format_.bias(), top = format_.top();
    switch (kind) {
      case Kind::finite:
        return operand(below(top + 1));
      case Kind::bottom:
        return operand(bias - 2 + below(5));
      case Kind::subnormal:
        return operand(bias - 8 + below(16));
      case Kind::extremes:
        return one_in(2) ? operand(0, 0) : one_in(4) ? operand(bias + below(3)) : operand(top - below(4));
      case Kind::overflow:
        return operand(half_of_top() + below(2));
      case Kind::signed_zeros:
        return one_in(2) ? operand(0, 0) : operand(bias);
      case Kind::tiny:
        return operand(one_in(8) ? bias : below(bias));
      case Kind::special:
        return left(kind);
      case Kind::ordinary:
        break;
    }
    return near_one();
  }
  float accumulator(Kind kind) {
    const int bias = sum_.bias(), top = sum_.top();
    switch (kind) {
      case Kind::finite:
        return of(sum_, below(top + 1));
      case Kind::bottom:
      case Kind::subnormal:
        return one_in(2) ? of(sum_, below(bias / 4)) : of(sum_, 0);
      case Kind::extremes:
        return one_in(2) ? of(sum_, 0, 0) : of(sum_, one_in(2) ? 0 : below(top));
      case Kind::overflow:
        return of(sum_, top - below(3));
      case Kind::special:
        return one_in(24) ? of(sum_, top + 1, one_in(2) ? 0 : 1) : of(sum_, bias - 3 + below(6));
      case Kind::signed_zeros:
        return of(sum_, 0, 0);
      case Kind::tiny:
        return one_in(2) ? of(sum_, 0, 0) : of(sum_, 0);
      case Kind::ordinary:
        break;
    }
    return of(sum_, bias - 5 + below(8));
  }

 private:
  int below(int count) { return static_cast<int>(random_.below(static_cast<std::size_t>(count))); }
  bool one_in(int count) { return below(count) == 0; }
  int half_of_top() const { return format_.bias() + (sum_.exponent_bits == 5 ? 5 : format_.bias() / 2); }
  float operand(int exponent, int fraction = -1) { return of(format_, exponent, fraction); }
  float near_one() { return operand(format_.bias() - 3 + below(6)); }

  /// A number of the format, exactly; a fraction below 0: any.
  float of(const Layout& layout, int exponent, int fraction = -1) {
    if (fraction < 0) {
      fraction = below(1 << layout.fraction_bits);
      if (one_in(4)) fraction >>= below(layout.fraction_bits);
    }
    const bool is_negative = one_in(2);
    if (exponent == layout.top() + 1) {
      const std::uint32_t pattern = fraction == 0 ? infinite : infinite + 0x40'0000;
      return std::bit_cast<float>(pattern | (is_negative ? sign_bit : 0));
    }
    const double digits = exponent == 0 ? fraction : fraction + std::ldexp(1.0, layout.fraction_bits);
    const double x = std::ldexp(digits, std::max(exponent, 1) - layout.bias() - layout.fraction_bits);
    return static_cast<float>(is_negative ? -x : x);
  }

  Random& random_;
  Layout format_, sum_;
};

}  // namespace kda_check::test

// The rules of a tensor core's sums (docs/arithmetic.md) once more, in integers.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kda/arithmetic/cast_points.hpp"

namespace kda_check::test {

using kda::Rounding;

__extension__ typedef __int128 Integer;

inline constexpr std::uint32_t not_a_number = 0x7fff'ffff, infinite = 0x7f80'0000, sign_bit = 0x8000'0000;

/// The rules once more, from bit patterns and in integers.
class Ruled {
 public:
  /// Below which E does not sink.
  static int floor(int bits, bool narrow_sum) {
    return narrow_sum ? (bits == 24 ? -20 : -21) : (bits == 24 ? -132 : -133);
  }
  Ruled(int bits, Rounding operands, bool narrow_sum = false)
      : Ruled(bits, operands, narrow_sum, floor(bits, narrow_sum)) {}
  Ruled(int bits, Rounding operands, bool narrow_sum, int floor)
      : bits_(bits),
        least_(operands == Rounding::fp16 ? -14 : -126),
        narrow_sum_(narrow_sum),
        floor_(floor) {}

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
    int largest = floor_;
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
  int floor_;
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

}  // namespace kda_check::test

#include "numeric/exact_exponential.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace kda_check::numeric::exact {

namespace {

using Limb = std::uint64_t;
__extension__ typedef unsigned __int128 TwoLimbs;
constexpr int limb_bits = 64, limbs = 5, fraction_bits = (limbs - 1) * limb_bits;

/// A number >= 0 and below 2^64 with 256 bits behind the point, the lowest limb first. What does not fit
/// below is cut off.
struct Fixed {
  std::array<Limb, limbs> limb{};
};

Fixed sum(const Fixed& a, const Fixed& b) {
  Fixed result;
  TwoLimbs carry = 0;
  for (std::size_t i = 0; i < limbs; ++i) {
    carry += static_cast<TwoLimbs>(a.limb[i]) + b.limb[i];
    result.limb[i] = static_cast<Limb>(carry);
    carry >>= limb_bits;
  }
  return result;
}

bool is_below(const Fixed& a, const Fixed& b) {
  for (std::size_t i = limbs; i-- > 0;)
    if (a.limb[i] != b.limb[i]) return a.limb[i] < b.limb[i];
  return false;
}

/// a - b, a >= b.
Fixed difference(const Fixed& a, const Fixed& b) {
  Fixed result;
  Limb borrow = 0;
  for (std::size_t i = 0; i < limbs; ++i) {
    const TwoLimbs taken = static_cast<TwoLimbs>(b.limb[i]) + borrow;
    borrow = taken > a.limb[i];
    result.limb[i] = static_cast<Limb>(a.limb[i] - taken);
  }
  return result;
}

Fixed product(const Fixed& a, const Fixed& b) {
  std::array<Limb, 2 * limbs> whole{};
  for (std::size_t i = 0; i < limbs; ++i) {
    TwoLimbs carry = 0;
    for (std::size_t j = 0; j < limbs; ++j) {
      carry += static_cast<TwoLimbs>(a.limb[i]) * b.limb[j] + whole[i + j];
      whole[i + j] = static_cast<Limb>(carry);
      carry >>= limb_bits;
    }
    whole[i + limbs] = static_cast<Limb>(carry);
  }
  Fixed result;
  for (std::size_t i = 0; i < limbs; ++i) result.limb[i] = whole[i + limbs - 1];
  return result;
}

Fixed times(const Fixed& a, Limb factor) {
  Fixed result;
  TwoLimbs carry = 0;
  for (std::size_t i = 0; i < limbs; ++i) {
    carry += static_cast<TwoLimbs>(a.limb[i]) * factor;
    result.limb[i] = static_cast<Limb>(carry);
    carry >>= limb_bits;
  }
  return result;
}

Fixed quotient(const Fixed& a, Limb divisor) {
  Fixed result;
  TwoLimbs rest = 0;
  for (std::size_t i = limbs; i-- > 0;) {
    rest = rest << limb_bits | a.limb[i];
    result.limb[i] = static_cast<Limb>(rest / divisor);
    rest %= divisor;
  }
  return result;
}

Fixed whole(Limb number) {
  Fixed result;
  result.limb[limbs - 1] = number;
  return result;
}

/// Bits [from, from + 64) of a, counted from the lowest; zeros outside.
Limb bits_from(const Fixed& a, int from) {
  const auto limb_at = [&](int i) { return i < 0 || i >= limbs ? 0 : a.limb[static_cast<std::size_t>(i)]; };
  const int first = from >= 0 ? from / limb_bits : -((limb_bits - 1 - from) / limb_bits);
  const int shift = from - first * limb_bits;
  return shift == 0 ? limb_at(first) : limb_at(first) >> shift | limb_at(first + 1) << (limb_bits - shift);
}

/// |x| 2^-exponent, below 2^64.
Fixed from_double(double x, int exponent = 0) {
  if (x == 0) return {};
  int power = 0;
  const double fraction = std::frexp(std::fabs(x), &power);  // [0.5, 1) 2^power
  const auto significand = static_cast<Limb>(fraction * 0x1p64);
  // Its lowest bit has the weight 2^(power - 64 - exponent).
  const int lowest = fraction_bits + power - limb_bits - exponent;
  Fixed result;
  for (int i = 0; i < limbs; ++i) {
    const int offset = i * limb_bits - lowest;  // of this limb in the significand
    if (offset >= limb_bits || offset <= -limb_bits) continue;
    result.limb[static_cast<std::size_t>(i)] = offset >= 0 ? significand >> offset : significand << -offset;
  }
  return result;
}

/// |hi + lo| 2^-exponent; lo is the smaller.
Fixed from_pair(DoubleDouble x, int exponent = 0) {
  const Fixed hi = from_double(x.hi, exponent), lo = from_double(x.lo, exponent);
  return (x.hi < 0) == (x.lo < 0) ? sum(hi, lo) : difference(hi, lo);
}

/// ln 2
constexpr Fixed logarithm_of_2{
    {0x8a0d175b8baafa2b, 0x40f343267298b62d, 0xc9e3b39803f2f6af, 0xb17217f7d1cf79ab, 0}};

/// significand 2^exponent, the significand in [1, 2).
struct Power {
  Fixed significand;
  int exponent;
};

/// exp(r) for r in [0, ln 2): Taylor's series of r / 256, whose 28th term is below 2^-(8.5 * 28 + 97), then
/// eight squarings. Each of some 40 operations errs by a unit of 2^-256, and each squaring doubles what was
/// before: below 2^-240 in all.
Fixed exp_of_fraction(const Fixed& r) {
  const Fixed small = quotient(r, 256), one = whole(1);
  Fixed value = one;
  for (Limb k = 28; k > 0; --k) value = sum(one, quotient(product(value, small), k));
  for (int squaring = 0; squaring < 8; ++squaring) value = product(value, value);
  return value;
}

/// exp(x) = exp(r) 2^n, r = x - n ln 2.
Power exp_of(DoubleDouble x) {
  const Fixed size = from_pair(x);
  const auto quotient_of = static_cast<int>(std::fabs(x.hi) * 0x1.71547652b82fep+0);  // one off at most
  if (x.hi > 0) {
    int n = quotient_of + 1;
    while (is_below(size, times(logarithm_of_2, static_cast<Limb>(n)))) --n;
    return {exp_of_fraction(difference(size, times(logarithm_of_2, static_cast<Limb>(n)))), n};
  }
  int n = quotient_of > 0 ? quotient_of - 1 : 0;
  while (is_below(times(logarithm_of_2, static_cast<Limb>(n)), size)) ++n;
  return {exp_of_fraction(difference(times(logarithm_of_2, static_cast<Limb>(n)), size)), -n};
}

/// Rounded to nearest; never a tie, powers being irrational.
double rounded(const Power& power) {
  constexpr int least_normal = -1022, digits = 53;
  // The result's last place is 2^unit; bit `lowest` of the significand has that weight.
  const int unit = (power.exponent > least_normal ? power.exponent : least_normal) - (digits - 1);
  const int lowest = fraction_bits + unit - power.exponent;
  const Limb kept = bits_from(power.significand, lowest);
  const bool up = (bits_from(power.significand, lowest - 1) & 1) != 0;
  return std::ldexp(static_cast<double>(kept + (up ? 1 : 0)), unit);
}

}  // namespace

double exp(double x) { return rounded(exp_of({x, 0.0})); }

double exp2(double x) {
  Fixed fraction = from_double(x);
  int n = static_cast<int>(fraction.limb[limbs - 1]);
  fraction.limb[limbs - 1] = 0;
  if (x < 0) {
    n = -n - 1;
    fraction = difference(whole(1), fraction);
  }
  return rounded({exp_of_fraction(product(fraction, logarithm_of_2)), n});
}

bool exp_is_below(DoubleDouble x, DoubleDouble y) {
  const Power power = exp_of(x);
  return is_below(power.significand, from_pair(y, power.exponent));
}

}  // namespace kda_check::numeric::exact

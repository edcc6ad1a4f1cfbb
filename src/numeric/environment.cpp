#include "numeric/environment.hpp"

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "numeric/strict.hpp"

namespace kda_check::numeric {

namespace {

// Operands come through volatile so that nothing is computed by the compiler.
template <class T>
T opaque(T value) {
  volatile T copy = value;
  return copy;
}

template <class T>
bool flushes_results() {
  // Looked at by its bits: a comparison would read a subnormal as zero under DAZ.
  const T half = opaque(opaque(std::numeric_limits<T>::min()) * opaque(T(0.5)));
  const T zero = 0;
  return std::memcmp(&half, &zero, sizeof half) == 0;
}

template <class T>
bool flushes_operands() {
  // The sum is normal unless the subnormal operand is read as zero.
  const T tiny = opaque(std::numeric_limits<T>::denorm_min());
  const T smallest = opaque(std::numeric_limits<T>::min());
  return smallest + tiny == smallest;
}

template <class T>
bool rounds_to_nearest() {
  const T one = opaque(T(1)), step = std::numeric_limits<T>::epsilon();
  const T below_half = opaque(step * T(0.25)), above_half = opaque(step * T(0.75));
  return one + below_half == one && one + above_half == one + step && -one - below_half == -one &&
         -one - above_half == -one - step && one + opaque(step * T(0.5)) == one;
}

// (1 + e)^2 - (1 + 2e) is e^2 with one rounding and 0 with two.
template <class T>
T square_minus(T x, T subtrahend) {
  const T square = x * x;
  return square - subtrahend;
}

template <class T>
bool contracts() {
  const T e = std::numeric_limits<T>::epsilon();
  return square_minus(opaque(1 + e), opaque(1 + 2 * e)) != 0;
}

template <class T>
bool fma_rounds_twice() {
  const T e = std::numeric_limits<T>::epsilon();
  return std::fma(opaque(1 + e), opaque(1 + e), opaque(-(1 + 2 * e))) != e * e;
}

}  // namespace

std::string floating_point_defect() {
  if (std::fegetround() != FE_TONEAREST || !rounds_to_nearest<float>() || !rounds_to_nearest<double>())
    return "the rounding mode is not round-to-nearest";
  if (flushes_results<float>() || flushes_results<double>())
    return "subnormal results are flushed to zero (FTZ)";
  if (flushes_operands<float>() || flushes_operands<double>())
    return "subnormal operands are read as zero (DAZ)";
  if (contracts<float>() || contracts<double>())
    return "the compiler fused a multiplication and an addition (-ffp-contract=off is missing)";
  if (fma_rounds_twice<float>() || fma_rounds_twice<double>()) return "fma rounds twice";
  return {};
}

}  // namespace kda_check::numeric

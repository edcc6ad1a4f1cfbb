// Elementary functions in fp64, correctly rounded: to nearest even, whatever the machine, the compiler and
// the C library. What this program computes in fp64 is made of these, of +, -, *, /, sqrt and fma.
//
// Each of the first four takes two steps (A. Ziv, "Fast evaluation of elementary mathematical functions with
// correctly rounded last bit", ACM TOMS 17, 1991). The first (elementary_steps.hpp) is right to some 66 bits
// and knows when that does not decide the rounding, once in thousands of arguments; then the second
// (exact_exponential.hpp) does it with integers, 256 bits behind the point. Hard cases of exp, the hardest,
// need 158 bits (V. Lefevre, J.-M. Muller, "Worst cases for correct rounding of the elementary functions in
// double precision", ARITH 15, 2001), those of the logarithms fewer.
#pragma once

namespace kda_check::numeric {

double exp(double x);
double exp2(double x);
double log(double x);
double log1p(double x);

// What follows is made of IEEE operations, so the same everywhere too, and off by less than 0.501 units in
// the last place.

double log2(double x);
/// x^y, x > 0, |y| <= 1.
double power(double x, double y);
/// sqrt(a^2 + b^2), for squares in range.
double root_of_squares(double a, double b);
/// cos x, |x| <= 8; near its zeros off by 0.501 units in the last place of 2^-10.
double cosine(double x);

}  // namespace kda_check::numeric

// Operands on which sums of a tensor core are held to their model: numbers of every kind, from the ordinary
// to the ends of the range. Exponents are those stored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kda/arithmetic/arithmetic.hpp"
#include "numeric/random.hpp"

namespace kda_check::kda {

enum class DrawKind : unsigned char {
  finite,        ///< any finite pattern
  bottom,        ///< sums at the bottom of fp32's range, or of fp16's
  subnormal,     ///< subnormal numbers times ordinary ones
  extremes,      ///< zeros beside the least and the greatest
  overflow,      ///< sums about the largest number
  special,       ///< infinities and NaN among others
  signed_zeros,  ///< nothing but zeros
  ordinary,
  tiny,        ///< products that are below every place of fp32 but for a few
  cancelling,  ///< products that their neighbours take away, all or nearly all
  sinking,     ///< beside a zero: products below 2^-132 (fp16: 2^-20), a few of them in the places of the sum
};
struct DrawKindName {
  DrawKind kind;
  std::string_view name;
};
/// All that a model has been held to.
inline constexpr std::array draw_kinds{DrawKindName{DrawKind::finite, "any finite"},
                                       DrawKindName{DrawKind::bottom, "bottom of the range"},
                                       DrawKindName{DrawKind::subnormal, "subnormal"},
                                       DrawKindName{DrawKind::extremes, "extremes"},
                                       DrawKindName{DrawKind::overflow, "overflow"},
                                       DrawKindName{DrawKind::special, "infinities and NaN"},
                                       DrawKindName{DrawKind::signed_zeros, "signed zeros"},
                                       DrawKindName{DrawKind::ordinary, "ordinary"},
                                       DrawKindName{DrawKind::tiny, "tiny"},
                                       DrawKindName{DrawKind::cancelling, "cancelling"}};

/// Fields of a format.
struct DrawLayout {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int top() const { return (1 << exponent_bits) - 2; }
};

/// Numbers of a format, in fp32.
class ProductDraw {
 public:
  /// `format`: of operands; bf16, fp16 or tf32.
  ProductDraw(std::uint64_t seed, std::uint64_t stream, Rounding format, Accumulator accumulator);

  float left(DrawKind kind);
  float right(DrawKind kind);
  float accumulator(DrawKind kind);

  /// All of a[rows][depth], b[depth][columns], c[rows][columns].
  void fill(DrawKind kind, std::size_t rows, std::size_t columns, std::size_t depth, float* a, float* b,
            float* c);

 private:
  int below(int count) {
    return static_cast<int>(random_.below(counter_++, static_cast<std::uint64_t>(count)));
  }
  bool one_in(int count) { return below(count) == 0; }
  int half_of_top() const;
  float operand(int exponent, int fraction = -1) { return of(format_, exponent, fraction); }
  float near_one() { return operand(format_.bias() - 3 + below(6)); }
  float of(const DrawLayout& layout, int exponent, int fraction = -1);
  void cancel(std::size_t rows, std::size_t columns, std::size_t depth, float* a, float* b);
  void sink(std::size_t rows, std::size_t columns, std::size_t depth, float* a, float* b);

  numeric::Random random_;
  std::uint64_t counter_ = 0;
  DrawLayout format_, sum_;
};

}  // namespace kda_check::kda

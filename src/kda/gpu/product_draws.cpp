#include "kda/gpu/product_draws.hpp"

#include <bit>

#include "numeric/rounding.hpp"

namespace kda_check::kda {

namespace {

constexpr DrawLayout fp32_layout{8, 23}, fp16_layout{5, 10};

DrawLayout layout_of(Rounding format) {
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

}  // namespace

ProductDraw::ProductDraw(std::uint64_t seed, std::uint64_t stream, Rounding format, Accumulator accumulator)
    : random_(seed, stream),
      format_(layout_of(format)),
      sum_(accumulator == Accumulator::fp16 ? fp16_layout : fp32_layout) {}

int ProductDraw::half_of_top() const {
  return format_.bias() + (sum_.exponent_bits == 5 ? 5 : format_.bias() / 2);
}

/// A number of the layout, exactly; a fraction below 0: any.
float ProductDraw::of(const DrawLayout& layout, int exponent, int fraction) {
  if (fraction < 0) {
    fraction = below(1 << layout.fraction_bits);
    if (one_in(4)) fraction >>= below(layout.fraction_bits);
  }
  if (exponent > layout.top() && fraction != 0) fraction = 1 << (layout.fraction_bits - 1);  // a quiet NaN
  const auto digits = static_cast<std::uint32_t>(exponent << layout.fraction_bits | fraction),
             sign = static_cast<std::uint32_t>(one_in(2));
  if (layout.exponent_bits == 5)
    return numeric::widen_to_float(numeric::Float16{static_cast<std::uint16_t>(sign << 15 | digits)});
  return std::bit_cast<float>(sign << 31 | digits << (23 - layout.fraction_bits));
}

float ProductDraw::left(DrawKind kind) {
  const int bias = format_.bias(), top = format_.top();
  switch (kind) {
    case DrawKind::finite:
      return operand(below(top + 1));
    case DrawKind::bottom:
      return operand(below(4));
    case DrawKind::subnormal:
      return operand(one_in(3) ? below(12) : 0);
    case DrawKind::extremes:
      return one_in(2) ? operand(0, 0) : one_in(2) ? operand(below(2), 1) : operand(top - below(6));
    case DrawKind::overflow:
      return operand(half_of_top() + below(2));
    case DrawKind::special:
      return one_in(24) ? operand(top + 1, one_in(2) ? 0 : 1) : one_in(12) ? operand(0, 0) : near_one();
    case DrawKind::signed_zeros:
      return operand(0, 0);
    case DrawKind::tiny:
      return operand(below(bias / 2));
    case DrawKind::ordinary:
    case DrawKind::cancelling:
    case DrawKind::sinking:
      break;
  }
  return near_one();
}

float ProductDraw::right(DrawKind kind) {
  const int bias = format_.bias(), top = format_.top();
  switch (kind) {
    case DrawKind::finite:
      return operand(below(top + 1));
    case DrawKind::bottom:
      return operand(bias - 2 + below(5));
    case DrawKind::subnormal:
      return operand(bias - 8 + below(16));
    case DrawKind::extremes:
      return one_in(2) ? operand(0, 0) : one_in(4) ? operand(bias + below(3)) : operand(top - below(4));
    case DrawKind::overflow:
      return operand(half_of_top() + below(2));
    case DrawKind::signed_zeros:
      return one_in(2) ? operand(0, 0) : operand(bias);
    case DrawKind::tiny:
      return operand(one_in(8) ? bias : below(bias));
    case DrawKind::special:
      return left(kind);
    case DrawKind::ordinary:
    case DrawKind::cancelling:
    case DrawKind::sinking:
      break;
  }
  return near_one();
}

float ProductDraw::accumulator(DrawKind kind) {
  const int bias = sum_.bias(), top = sum_.top();
  switch (kind) {
    case DrawKind::finite:
      return of(sum_, below(top + 1));
    case DrawKind::bottom:
    case DrawKind::subnormal:
      return one_in(2) ? of(sum_, below(bias / 4)) : of(sum_, 0);
    case DrawKind::extremes:
      return one_in(2) ? of(sum_, 0, 0) : of(sum_, one_in(2) ? 0 : below(top));
    case DrawKind::overflow:
      return of(sum_, top - below(3));
    case DrawKind::special:
      return one_in(24) ? of(sum_, top + 1, one_in(2) ? 0 : 1) : of(sum_, bias - 3 + below(6));
    case DrawKind::signed_zeros:
    case DrawKind::sinking:
      return of(sum_, 0, 0);
    case DrawKind::tiny:
      return one_in(2) ? of(sum_, 0, 0) : of(sum_, 0);
    case DrawKind::cancelling:
      return one_in(2) ? of(sum_, 0, 0) : of(sum_, below(bias));
    case DrawKind::ordinary:
      break;
  }
  return of(sum_, bias - 5 + below(8));
}

/// Every second product becomes the negative of the one before it, some of them but for the size.
void ProductDraw::cancel(std::size_t rows, std::size_t columns, std::size_t depth, float* a, float* b) {
  for (std::size_t d = 1; d < depth; d += 2) {
    for (std::size_t row = 0; row < rows; ++row) a[row * depth + d] = a[row * depth + d - 1];
    for (std::size_t column = 0; column < columns; ++column)
      b[d * columns + column] = -b[(d - 1) * columns + column] * (one_in(16) ? 0.5F : 1.0F);
  }
}

/// One product in four is in the places of the sum, the others below them: they count where the digits above
/// are none or half a place, and E has not stopped sinking.
void ProductDraw::sink(std::size_t rows, std::size_t columns, std::size_t depth, float* a, float* b) {
  const bool is_fp16 = format_.exponent_bits == 5;
  const int leading = below(static_cast<int>(depth));
  for (std::size_t d = 0; d < depth; ++d) {
    const bool leads = static_cast<int>(d) == leading || one_in(4);
    // What the exponents of both are together, and that of the left one; fractions of the left, the right.
    int sum = 0, left = 0;
    if (is_fp16 && leads) {
      sum = 2 * format_.bias() - 25 + (one_in(2) ? 0 : below(5));
      left = 1 + below(sum - 1);
    } else if (!is_fp16) {
      sum = 2 * format_.bias() + (leads ? -149 + below(17) : -175 + below(18));
      left = sum / 2 - 15 + below(31);
    }
    const auto fraction = [&] { return leads ? (one_in(32) ? -1 : 0) : is_fp16 ? 1 : -1; };
    for (std::size_t row = 0; row < rows; ++row) a[row * depth + d] = operand(left, fraction());
    for (std::size_t column = 0; column < columns; ++column)
      b[d * columns + column] = one_in(8) ? operand(0, 0) : operand(sum - left, fraction());
  }
}

void ProductDraw::fill(DrawKind kind, std::size_t rows, std::size_t columns, std::size_t depth, float* a,
                       float* b, float* c) {
  for (std::size_t i = 0; i < rows * columns; ++i) c[i] = accumulator(kind);
  if (kind == DrawKind::sinking) return sink(rows, columns, depth, a, b);
  for (std::size_t i = 0; i < rows * depth; ++i) a[i] = left(kind);
  for (std::size_t i = 0; i < depth * columns; ++i) b[i] = right(kind);
  if (kind == DrawKind::cancelling) cancel(rows, columns, depth, a, b);
}

}  // namespace kda_check::kda

// Products on a tensor core (docs/arithmetic.md, "Tensor cores"). Sums are formed in fp64, a pack of outputs
// at a time, and nothing is lost there: products of fp32 numbers have 48 bits, and terms that are cut `bits`
// below the largest are integers whose sum has `bits` + 7.
#pragma once

#include "kda/arithmetic/rounded.hpp"
#include "kda/kernels/lanes/team.hpp"
#include "kda/kernels/operations.hpp"
#ifndef __CUDACC__
#include "kda/kernels/lanes/tensor_core_lanes.hpp"
#endif

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T>
struct Factor {
  const T* data;
  std::size_t row_stride,
      depth_stride;  ///< element (row, depth) is data[row * row_stride + depth * depth_stride]
};

enum class Start { zero, from_result };

/// What a zero counts with: below every product that is none, whatever the other factor is.
inline constexpr std::int32_t exponent_of_zero = -450;

/// The exponents that numbers count with.
KDA_CHECK_THREAD Sixteen<std::int32_t> counted_exponents(const float* x, std::int32_t least) {
  using Integers = Sixteen<std::int32_t>;
  const Integers magnitude = bits_of(Sixteen<float>::load(x)) & 0x7fff'ffff;
  const Integers own = maximum((magnitude >> 23) - 127, Integers::broadcast(least));
  const Integers is_zero = (magnitude - 1) >> 31;  // all bits or none
  return own + (is_zero & (exponent_of_zero - least));
}

/// accumulator += the products of one group. `terms` has the products and the largest sum of their factors'
/// exponents.
template <class Terms>
KDA_CHECK_THREAD Sixteen<double> group_sum(const TensorCore& core, std::size_t count, const Terms& terms,
                                           const float* accumulator) {
  using Doubles = Sixteen<double>;
  const bool is_narrow = core.accumulator == Accumulator::fp16;
  const std::int32_t least_exponent = is_narrow ? -14 : -126;
  const Doubles zero = Doubles::zero();
  const auto constant = [](double x) KDA_CHECK_BODY { return Doubles::broadcast(x); };
  const Doubles c = load_widened<Doubles>(accumulator);

  using Integers = Sixteen<std::int32_t>;
  const std::int32_t floor = least_exponent - core.sinks();
  const Integers largest =
      maximum(maximum(counted_exponents(accumulator, least_exponent), Integers::broadcast(floor)),
              terms.largest_exponent(count));
  const Integers unit = largest - core.bits;
  const Doubles scale = power_of_two(-unit);
  Doubles sum = zero + truncated(c * scale);
  for (std::size_t d = 0; d < count; ++d) sum = sum + truncated(terms.product(d) * scale);
  sum = sum * power_of_two(unit);

  // Nearly all are no smaller than normal fp32 numbers: the digits beyond fp32 are cut off where they stand.
  const Doubles size = absolute(sum);
  if (!is_narrow && all(size >= constant(0x1p-126))) return cut_to_fp32(sum);

  // To the accumulator's digits, fewer below its smallest exponent. Adding zero takes the sign off a zero.
  const Doubles own = maximum(constant(least_exponent), binary_exponent_of(size)),
                last = own - (is_narrow ? 10.0 : 23.0), digits = sum * power_of_two(-last);
  const Doubles kept = (is_narrow ? round_to_integer(digits) : truncated(digits)) * power_of_two(last) + zero;
  const auto is_in_range = absolute(kept) < constant(is_narrow ? 65520.0 : 0x1p128);
  if (all(is_in_range)) return kept;

  // Plain arithmetic tells what is infinite or no number among the terms: fp64 has room for all others.
  Doubles plain = c;
  for (std::size_t d = 0; d < count; ++d) plain = plain + terms.product(d);
  const Doubles not_a_number = constant(__builtin_bit_cast(double, 0x7fff'ffff'e000'0000ULL));
  const Doubles beyond = select(plain == plain, plain, not_a_number);
  return select(plain - plain == zero, select(is_in_range, kept, kept * 0x1p128), beyond);
}

#ifdef __CUDACC__

/// A row and a column, of which an element is read where it is needed.
struct ColumnTerms {
  const float *a, *b;
  std::size_t a_stride, b_stride;
  int least_exponent;

  __device__ OneLane<std::int32_t> largest_exponent(std::size_t count) const {
    OneLane<std::int32_t> largest{2 * exponent_of_zero};
    for (std::size_t d = 0; d < count; ++d)
      largest = maximum(largest, counted_exponents(a + d * a_stride, least_exponent) +
                                     counted_exponents(b + d * b_stride, least_exponent));
    return largest;
  }
  __device__ OneLane<double> product(std::size_t d) const {
    return {static_cast<double>(a[d * a_stride]) * static_cast<double>(b[d * b_stride])};
  }
};

/// C[rows][columns] (+)= A[rows][depth] B[depth][columns].
template <class T>
KDA_CHECK_TEAM_APART void tensor_core_product(const TensorCore& core, std::size_t rows, std::size_t columns,
                                              std::size_t depth, Factor<T> a, const T* b,
                                              std::size_t b_stride, T* c, std::size_t c_stride, Start start) {
  each(rows, columns, [=, &core](std::size_t row, std::size_t column) {
    T* const target = c + row * c_stride + column;
    float sum = start == Start::zero ? 0.0F : *target;
    for (std::size_t d = 0; d < depth; d += core.together) {
      const std::size_t count = min(core.together, depth - d);
      const ColumnTerms terms{a.data + row * a.row_stride + d * a.depth_stride, b + d * b_stride + column,
                              a.depth_stride, b_stride, core.least_exponent};
      store_rounded(group_sum(core, count, terms, &sum), &sum);
    }
    *target = sum;
  });
}

#else

/// Sixteen numbers, and the exponents they count with.
struct CountedNumbers {
  float value[16];
  std::int16_t exponent[16];
  bool are_short;  ///< finite, of at most twelve bits: their products are exact in fp32

  KDA_CHECK_INLINE void count(const TensorCore& core, const float* operand) {
    __builtin_memcpy(value, operand, sizeof value);
    std::int32_t wide[16];
    counted_exponents(operand, core.least_exponent).store(wide);
    for (int i = 0; i < 16; ++i) exponent[i] = static_cast<std::int16_t>(wide[i]);
    are_short = has_twelve_bits(Sixteen<float>::load(operand));
  }
  KDA_CHECK_INLINE void take(const TensorCore& core, const float* x) {
    if (core.of_operands == Rounding::none) return count(core, x);
    float operand[16];
    for (int i = 0; i < 16; ++i) operand[i] = rounded(core.of_operands, x[i]);
    count(core, operand);
  }
};

/// A group of sixteen columns.
struct CountedColumns {
  CountedNumbers number[16];
  std::int32_t exponents[8][16];  ///< of two rows each, the first in the lower half
  bool are_short;

  /// Behind the last number.
  KDA_CHECK_INLINE void pair_up(std::size_t count) {
    are_short = true;
    for (std::size_t d = 0; d < count; ++d) are_short = are_short && number[d].are_short;
    for (std::size_t d = count; d % 2 != 0; ++d)
      for (std::int16_t& exponent : number[d].exponent) exponent = exponent_of_zero;
    for (std::size_t d = 0; d < count; d += 2)
      for (int i = 0; i < 16; ++i)
        exponents[d / 2][i] = (number[d].exponent[i] & 0xffff) + number[d + 1].exponent[i] * 0x10000;
  }
};

/// bf16 numbers that an operand is split into, each the nearest to what those before it leave.
inline constexpr int parts_of_operand = 3;

/// Part p goes to part_of(p).
template <class Part>
KDA_CHECK_INLINE void take_parts(const TensorCore& core, const float* x, Part part_of) {
  float rest[16], part[16];
  for (int i = 0; i < 16; ++i) rest[i] = rounded(core.of_operands, x[i]);
  for (int p = 0; p < parts_of_operand; ++p) {
    for (int i = 0; i < 16; ++i) part[i] = numeric::through_bf16(rest[i]), rest[i] = rest[i] - part[i];
    part_of(p).count(core, part);
  }
}

/// One group of a row against sixteen columns.
struct PackTerms {
  const CountedNumbers* row;  ///< across the group
  const CountedColumns* columns;

  KDA_CHECK_INLINE Sixteen<std::int32_t> largest_exponent(std::size_t count) const {
    Sixteen<std::int32_t> pairs = exponents(0);
    for (std::size_t d = 2; d < count; d += 2) pairs = maximum_of_halves(pairs, exponents(d));
    return maximum(lower_halves(pairs), pairs >> 16);
  }
  KDA_CHECK_INLINE Sixteen<double> product(std::size_t d) const {
    return load_widened<Sixteen<double> >(columns->number[d].value) * static_cast<double>(row->value[d]);
  }

 private:
  /// Of d and d + 1.
  KDA_CHECK_INLINE Sixteen<std::int32_t> exponents(std::size_t d) const {
    std::int32_t of_row;
    __builtin_memcpy(&of_row, row->exponent + d, sizeof of_row);
    return sum_of_halves(Sixteen<std::int32_t>::load(columns->exponents[d / 2]),
                         Sixteen<std::int32_t>::broadcast(of_row));
  }
};

/// group_sum(core, count, terms, sum) to where it started from. Of short operands products are exact in fp32,
/// and what is kept of them integers of 27 bits.
KDA_CHECK_INLINE void add_group(const TensorCore& core, std::size_t count, const PackTerms& terms,
                                float* sum) {
  using Floats = Sixteen<float>;
  using Integers = Sixteen<std::int32_t>;
  // Between these neither what a term is scaled by nor a sum leaves fp32's range, and no product is below it
  // that counts; where all terms are zero nothing does.
  constexpr std::int32_t least = -90, most = 90, of_zeros = -300;
  if (terms.row->are_short && terms.columns->are_short && core.accumulator == Accumulator::fp32 &&
      core.bits <= 25) {
    const Integers largest = maximum(counted_exponents(sum, -126), terms.largest_exponent(count));
    if (are_within(largest, least, most, of_zeros)) {
      const Integers unit = maximum(largest, Integers::broadcast(least)) - core.bits;
      const Floats scale = float_power_of_two(Integers::zero() - unit);
      // Eight terms have 30 bits.
      Integers low = truncated(Floats::load(sum) * scale), high = Integers::zero();
      const auto term = [&](std::size_t d) __attribute__((always_inline)) {
        return truncated(Floats::load(terms.columns->number[d].value) * terms.row->value[d] * scale);
      };
      for (std::size_t d = 0; d < count; d += 2) {
        low = low + term(d);
        if (d + 1 < count) high = high + term(d + 1);
      }
      if (fits(low, high)) return (cut_to_fp32(low + high) * float_power_of_two(unit)).store(sum);
    }
  }
  store_rounded(group_sum(core, count, terms, sum), sum);
}

/// The same of operands that are split: the products of high parts onto what C holds, five lesser ones each
/// time onto a sum of their own, which is added behind the last group.
template <class T>
void split_product(const TensorCore& core, std::size_t rows, std::size_t columns, std::size_t depth,
                   Factor<T> a, const T* b, std::size_t b_stride, T* c, std::size_t c_stride, Start start) {
  constexpr std::size_t most_rows = 64;
  constexpr struct { int of_a, of_b; } lesser[] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}};
  CountedNumbers of_row[parts_of_operand];
  CountedColumns of_columns[parts_of_operand];
  for (std::size_t top = 0; top < rows; top += most_rows) {
    const std::size_t height = rows - top < most_rows ? rows - top : most_rows;
    for (std::size_t column = 0; column < columns; column += 16) {
      T high[most_rows][16] = {}, low[most_rows][16] = {};
      if (start == Start::from_result)
        for (std::size_t row = 0; row < height; ++row)
          __builtin_memcpy(high[row], c + (top + row) * c_stride + column, sizeof(high[row]));
      for (std::size_t from = 0; from < depth; from += core.together) {
        const std::size_t count = depth - from < core.together ? depth - from : core.together;
        for (std::size_t d = 0; d < count; ++d)
          take_parts(core, b + (from + d) * b_stride + column,
                     [&](int p) -> CountedNumbers& { return of_columns[p].number[d]; });
        for (CountedColumns& part : of_columns) part.pair_up(count);
        for (std::size_t row = 0; row < height; ++row) {
          T line[16] = {};
          for (std::size_t d = 0; d < count; ++d)
            line[d] = a.data[(top + row) * a.row_stride + (from + d) * a.depth_stride];
          take_parts(core, line, [&](int p) -> CountedNumbers& { return of_row[p]; });
          const auto add = [&](int of_a, int of_b, T* sum) {
            add_group(core, count, {of_row + of_a, of_columns + of_b}, sum);
          };
          for (const auto& product : lesser) add(product.of_a, product.of_b, low[row]);
          add(0, 0, high[row]);
        }
      }
      for (std::size_t row = 0; row < height; ++row)
        for (std::size_t i = 0; i < 16; ++i)
          c[(top + row) * c_stride + column + i] = high[row][i] + low[row][i];
    }
  }
}

/// C[rows][columns] (+)= A[rows][depth] B[depth][columns]; columns is a multiple of 16. Group by group: what
/// factors count with is found out once for each (of B, once for 64 rows).
template <class T>
KDA_CHECK_TEAM_APART void tensor_core_product(const TensorCore& core, std::size_t rows, std::size_t columns,
                                              std::size_t depth, Factor<T> a, const T* b,
                                              std::size_t b_stride, T* c, std::size_t c_stride, Start start) {
  if (core.splits) return split_product(core, rows, columns, depth, a, b, b_stride, c, c_stride, start);
  constexpr std::size_t most_rows = 64;
  CountedNumbers of_row[most_rows];
  CountedColumns of_columns;
  if (start == Start::zero)
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t column = 0; column < columns; ++column) c[row * c_stride + column] = 0;
  for (std::size_t from = 0; from < depth; from += core.together) {
    const std::size_t count = depth - from < core.together ? depth - from : core.together;
    for (std::size_t top = 0; top < rows; top += most_rows) {
      const std::size_t height = rows - top < most_rows ? rows - top : most_rows;
      for (std::size_t row = 0; row < height; ++row) {
        T line[16] = {};
        for (std::size_t d = 0; d < count; ++d)
          line[d] = a.data[(top + row) * a.row_stride + (from + d) * a.depth_stride];
        of_row[row].take(core, line);
      }
      for (std::size_t column = 0; column < columns; column += 16) {
        for (std::size_t d = 0; d < count; ++d)
          of_columns.number[d].take(core, b + (from + d) * b_stride + column);
        of_columns.pair_up(count);
        for (std::size_t row = 0; row < height; ++row)
          add_group(core, count, {of_row + row, &of_columns}, c + (top + row) * c_stride + column);
      }
    }
  }
}

#endif

}  // namespace kda_check::kda::KDA_CHECK_ISA

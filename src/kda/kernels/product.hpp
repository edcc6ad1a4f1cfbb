// Matrix products with a promised order: every element of C is one sum, from depth 0 upwards, started from
// zero or from what C holds. Vectorised, or shared out among threads, across columns: no sum is ever split.
#pragma once

#include "kda/kernels/reduction.hpp"
#include "kda/kernels/tensor_core.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// The same in any order of sums, a pack of columns of a row at a time.
template <class T>
KDA_CHECK_TEAM_APART void ordered_product(const SumOrder& order, std::size_t rows, std::size_t columns,
                                          std::size_t depth, Factor<T> a, const T* b, std::size_t b_stride,
                                          T* c, std::size_t c_stride, Start start) {
  if constexpr (sizeof(T) == sizeof(float))
    if (order.core.together > 0)
      return tensor_core_product(order.core, rows, columns, depth, a, b, b_stride, c, c_stride, start);
  using Pack = Sixteen<T>;
  const bool has_start = start == Start::from_result;
  each_pack<T>(rows, columns, [=, &order](std::size_t row, std::size_t column) KDA_CHECK_BODY {
    T* const target = c + row * c_stride + column;
    const WeightedRows<T> terms{a.data + row * a.row_stride, a.depth_stride, b + column, b_stride,
                                order.of_operands};
    ordered_sum(order, depth, terms, has_start ? Pack::load(target) : Pack::zero(), has_start).store(target);
  });
}

#ifdef __CUDACC__

/// `together` rows of a column by a thread: what a row of B is read for.
template <class T, bool is_fused, unsigned together>
KDA_CHECK_TEAM void running_product(std::size_t rows, std::size_t columns, std::size_t depth, Factor<T> a,
                                    const T* b, std::size_t b_stride, T* c, std::size_t c_stride,
                                    Start start) {
  each((rows + together - 1) / together, columns, [=](std::size_t group, std::size_t column) {
    const T* of_row[together];
    T sum[together];
#pragma unroll
    for (unsigned r = 0; r < together; ++r) {
      const std::size_t row = min(group * together + r, rows - 1);  // the last is computed again
      of_row[r] = a.data + row * a.row_stride;
      sum[r] = start == Start::zero ? T(0) : c[row * c_stride + column];
    }
    const T* of_column = b + column;
    std::size_t at = 0;
#pragma unroll 4
    for (std::size_t d = 0; d < depth; ++d, at += a.depth_stride, of_column += b_stride) {
      const T x = *of_column;
#pragma unroll
      for (unsigned r = 0; r < together; ++r)
        sum[r] = scalar_multiply_add<is_fused>(of_row[r][at], x, sum[r]);
    }
#pragma unroll
    for (unsigned r = 0; r < together; ++r)
      if (group * together + r < rows) c[(group * together + r) * c_stride + column] = sum[r];
  });
}

/// C[rows][columns] (+)= A[rows][depth] B[depth][columns]; columns is a multiple of 16.
template <class T, bool is_fused>
KDA_CHECK_TEAM_APART void product(const SumOrder& order, std::size_t rows, std::size_t columns,
                                  std::size_t depth, Factor<T> a, const T* b, std::size_t b_stride, T* c,
                                  std::size_t c_stride, Start start) {
  constexpr unsigned together = 8;
  if (!order.is_running())
    ordered_product(order, rows, columns, depth, a, b, b_stride, c, c_stride, start);
  else if (rows * columns >= together * blockDim.x)
    running_product<T, is_fused, together>(rows, columns, depth, a, b, b_stride, c, c_stride, start);
  else
    running_product<T, is_fused, 1>(rows, columns, depth, a, b, b_stride, c, c_stride, start);
}

#else

template <class T, bool is_fused, int R, class Pack>
KDA_CHECK_INLINE void product_tile(std::size_t depth, const T* a, std::size_t row_stride,
                                   std::size_t depth_stride, const T* b, std::size_t b_stride, T* c,
                                   std::size_t c_stride, Start start) {
  Pack sum[R];
  unrolled<R>([&](auto r) __attribute__((always_inline)) {
    sum[r] = start == Start::zero ? Pack::zero() : Pack::load(c + r * c_stride);
  });
  for (std::size_t d = 0; d < depth; ++d) {
    const Pack row = Pack::load(b + d * b_stride);
    const T* const column = a + d * depth_stride;
    unrolled<R>([&](auto r) __attribute__((always_inline)) {
      sum[r] = multiply_add<is_fused>(column[r * row_stride], row, sum[r]);
    });
  }
  unrolled<R>([&](auto r) __attribute__((always_inline)) { sum[r].store(c + r * c_stride); });
}

template <class T, bool is_fused, class Pack>
KDA_CHECK_INLINE void product_columns(std::size_t rows, std::size_t depth, Factor<T> a, const T* b,
                                      std::size_t b_stride, T* c, std::size_t c_stride, Start start) {
  constexpr int together = vector_bytes == 64 ? 8 : 4;
  const std::size_t whole = rows - rows % together;
  for (std::size_t row = 0; row < whole; row += together)
    product_tile<T, is_fused, together, Pack>(depth, a.data + row * a.row_stride, a.row_stride,
                                              a.depth_stride, b, b_stride, c + row * c_stride, c_stride,
                                              start);
  for (std::size_t row = whole; row < rows; ++row)
    product_tile<T, is_fused, 1, Pack>(depth, a.data + row * a.row_stride, a.row_stride, a.depth_stride, b,
                                       b_stride, c + row * c_stride, c_stride, start);
}

/// C[rows][columns] (+)= A[rows][depth] B[depth][columns]; columns is a multiple of 16. Out of line: one copy
/// of its code serves all, and is small beside what it does.
template <class T, bool is_fused>
KDA_CHECK_TEAM_APART void product(const SumOrder& order, std::size_t rows, std::size_t columns,
                                  std::size_t depth, Factor<T> a, const T* b, std::size_t b_stride, T* c,
                                  std::size_t c_stride, Start start) {
  if (!order.is_running() || order.of_operands != Rounding::none)
    return ordered_product(order, rows, columns, depth, a, b, b_stride, c, c_stride, start);
  using Wide = Lanes<T, 2>;
  std::size_t column = 0;
  if constexpr (Wide::count >= 16)
    for (; column + Wide::count <= columns; column += Wide::count)
      product_columns<T, is_fused, Wide>(rows, depth, a, b + column, b_stride, c + column, c_stride, start);
  for (; column < columns; column += 16)
    product_columns<T, is_fused, Sixteen<T> >(rows, depth, a, b + column, b_stride, c + column, c_stride,
                                              start);
}

// In sums.cpp.
extern template void product<float, false>(const SumOrder&, std::size_t, std::size_t, std::size_t,
                                           Factor<float>, const float*, std::size_t, float*, std::size_t,
                                           Start);
extern template void product<float, true>(const SumOrder&, std::size_t, std::size_t, std::size_t,
                                          Factor<float>, const float*, std::size_t, float*, std::size_t,
                                          Start);
extern template void product<double, false>(const SumOrder&, std::size_t, std::size_t, std::size_t,
                                            Factor<double>, const double*, std::size_t, double*, std::size_t,
                                            Start);
extern template void product<double, true>(const SumOrder&, std::size_t, std::size_t, std::size_t,
                                           Factor<double>, const double*, std::size_t, double*, std::size_t,
                                           Start);

#endif

}  // namespace kda_check::kda::KDA_CHECK_ISA

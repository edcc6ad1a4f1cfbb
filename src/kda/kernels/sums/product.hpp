// Matrix products with a promised order: every element of C is one sum, from depth 0 upwards, started from
// zero or from what C holds. Vectorised, or shared out among threads, across columns: no sum is ever split.
#pragma once

#ifndef __CUDACC__
#include <algorithm>
#include <memory>

#include "kda/kernels/entries.hpp"
#endif
#include "kda/kernels/sums/reduction.hpp"
#include "kda/kernels/sums/tensor_core.hpp"

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
    const WeightedRows<T> terms{a.data + row * a.row_stride, a.depth_stride, b + column, b_stride};
    ordered_sum(order, depth, terms, has_start ? Pack::load(target) : Pack::zero(), has_start).store(target);
  });
}

#ifdef __CUDACC__

/// Neighbours that are loaded at once.
template <class T, unsigned count>
struct alignas(count * sizeof(T)) Neighbours {
  T x[count];

  static __device__ Neighbours at(const T* first) { return *reinterpret_cast<const Neighbours*>(first); }
};
/// Whether all that begins there, or whole strides behind it, can be.
template <unsigned count, class T>
__device__ bool are_aligned(const T* first, std::size_t stride) {
  return reinterpret_cast<std::uintptr_t>(first) % (count * sizeof(T)) == 0 && stride % count == 0;
}

/// Terms that one running sum takes: all `depth` of them, or those of a block; 0: the order is another.
KDA_CHECK_THREAD std::size_t run_of(const SumOrder& order, std::size_t depth) {
  if (order.is_running()) return depth;
  return order.reduction.kind == ReductionKind::blocks ? order.reduction.width : 0;
}

/// Elements of C that a thread adds up: a row of B is read for several rows of A, and the other way round.
template <class T, bool is_fused, unsigned R, unsigned C>
struct ProductTile {
  T sum[R][C] = {};

  __device__ void add(const T (&a)[R], const Neighbours<T, C>& b) {
#pragma unroll
    for (unsigned r = 0; r < R; ++r)
#pragma unroll
      for (unsigned c = 0; c < C; ++c) sum[r][c] = scalar_multiply_add<is_fused>(a[r], b.x[c], sum[r][c]);
  }
};

/// How rows of A lie: what lies side by side is loaded at once.
enum class Lying : std::uint8_t { along, across, apart };

/// Terms [d, end).
template <class T, bool is_fused, unsigned R, unsigned C>
__device__ __forceinline__ void add_terms(ProductTile<T, is_fused, R, C>& tile, Lying lying,
                                          const T* const (&of_row)[R], std::size_t depth_stride,
                                          const T* of_column, std::size_t b_stride, std::size_t d,
                                          std::size_t end) {
  constexpr unsigned quad = 4;
  using Quad = Neighbours<T, quad>;
  using Row = Neighbours<T, C>;
  if (lying == Lying::along)
#pragma unroll 2
    for (; d + quad <= end; d += quad) {
      Quad along[R];
      Row below[quad];
#pragma unroll
      for (unsigned i = 0; i < quad; ++i) below[i] = Row::at(of_column + (d + i) * b_stride);
#pragma unroll
      for (unsigned r = 0; r < R; ++r) along[r] = Quad::at(of_row[r] + d);
#pragma unroll
      for (unsigned i = 0; i < quad; ++i) {
        T across[R];
#pragma unroll
        for (unsigned r = 0; r < R; ++r) across[r] = along[r].x[i];
        tile.add(across, below[i]);
      }
    }
  else if (lying == Lying::across)
#pragma unroll 4
    for (; d < end; ++d) {
      T across[R];
#pragma unroll
      for (unsigned r = 0; r < R; r += quad) {
        const Quad some = Quad::at(of_row[0] + r + d * depth_stride);
#pragma unroll
        for (unsigned i = 0; i < quad; ++i)
          if (r + i < R) across[r + i] = some.x[i];
      }
      tile.add(across, Row::at(of_column + d * b_stride));
    }
#pragma unroll 2
  for (; d < end; ++d) {
    T across[R];
#pragma unroll
    for (unsigned r = 0; r < R; ++r) across[r] = of_row[r][d * depth_stride];
    tile.add(across, Row::at(of_column + d * b_stride));
  }
}

/// `run`: the terms of a running sum; in_blocks: there are several, which are added up from the first on.
template <class T, bool is_fused, bool in_blocks, unsigned R, unsigned C>
KDA_CHECK_TEAM void running_product(std::size_t run, std::size_t rows, std::size_t columns, std::size_t depth,
                                    Factor<T> a, const T* b, std::size_t b_stride, T* c, std::size_t c_stride,
                                    Start start) {
  constexpr unsigned quad = 4;
  using Row = Neighbours<T, C>;
  const Lying lying =
      a.depth_stride == 1 && are_aligned<quad>(a.data, a.row_stride) && (!in_blocks || run % quad == 0)
          ? Lying::along
      : R % quad == 0 && a.row_stride == 1 && rows % R == 0 && are_aligned<quad>(a.data, a.depth_stride)
          ? Lying::across
          : Lying::apart;
  each((rows + R - 1) / R, columns / C, [=](std::size_t group, std::size_t of_columns) {
    const std::size_t first = group * R, column = of_columns * C;
    const T* of_row[R];
    ProductTile<T, is_fused, R, C> tile;
#pragma unroll
    for (unsigned r = 0; r < R; ++r) {
      const std::size_t row = min(first + r, rows - 1);  // the last is computed again
      of_row[r] = a.data + row * a.row_stride;
      if (in_blocks || start == Start::zero) continue;
      const Row old = Row::at(c + row * c_stride + column);
#pragma unroll
      for (unsigned i = 0; i < C; ++i) tile.sum[r][i] = old.x[i];
    }
    if constexpr (in_blocks) {
      ProductTile<T, is_fused, R, C> total;
      for (std::size_t from = 0; from < depth; from += run) {
        tile = {};
        add_terms(tile, lying, of_row, a.depth_stride, b + column, b_stride, from, min(from + run, depth));
#pragma unroll
        for (unsigned r = 0; r < R; ++r)
#pragma unroll
          for (unsigned i = 0; i < C; ++i)
            total.sum[r][i] = from == 0 ? tile.sum[r][i] : total.sum[r][i] + tile.sum[r][i];
      }
      tile = total;
    } else {
      add_terms(tile, lying, of_row, a.depth_stride, b + column, b_stride, 0, depth);
    }
#pragma unroll
    for (unsigned r = 0; r < R; ++r)
      if (first + r < rows) {
        T* const target = c + (first + r) * c_stride + column;
        const bool is_added = in_blocks && start != Start::zero;
        const Row old = is_added ? Row::at(target) : Row{};
        Row result;
#pragma unroll
        for (unsigned i = 0; i < C; ++i) result.x[i] = is_added ? old.x[i] + tile.sum[r][i] : tile.sum[r][i];
        *reinterpret_cast<Row*>(target) = result;
      }
  });
}

/// A thread has as much of C as leaves none without.
template <class T, bool is_fused, bool in_blocks>
KDA_CHECK_TEAM void tiled_product(std::size_t run, std::size_t rows, std::size_t columns, std::size_t depth,
                                  Factor<T> a, const T* b, std::size_t b_stride, T* c, std::size_t c_stride,
                                  Start start) {
  const std::size_t of_thread = rows * columns / blockDim.x;
  const bool has_pairs = are_aligned<2>(b, b_stride) && are_aligned<2>(c, c_stride);
  if (of_thread >= 16 && has_pairs)
    running_product<T, is_fused, in_blocks, 8, 2>(run, rows, columns, depth, a, b, b_stride, c, c_stride,
                                                  start);
  else if (of_thread >= 4)
    running_product<T, is_fused, in_blocks, 4, 1>(run, rows, columns, depth, a, b, b_stride, c, c_stride,
                                                  start);
  else
    running_product<T, is_fused, in_blocks, 1, 1>(run, rows, columns, depth, a, b, b_stride, c, c_stride,
                                                  start);
}

/// C[rows][columns] (+)= A[rows][depth] B[depth][columns]; columns is a multiple of 16.
template <class T, bool is_fused>
KDA_CHECK_TEAM_APART void product(const SumOrder& order, std::size_t rows, std::size_t columns,
                                  std::size_t depth, Factor<T> a, const T* b, std::size_t b_stride, T* c,
                                  std::size_t c_stride, Start start) {
  const std::size_t run = run_of(order, depth);
  if (order.is_running())
    tiled_product<T, is_fused, false>(run, rows, columns, depth, a, b, b_stride, c, c_stride, start);
  else if (run > 0)
    tiled_product<T, is_fused, true>(run, rows, columns, depth, a, b, b_stride, c, c_stride, start);
  else
    ordered_product(order, rows, columns, depth, a, b, b_stride, c, c_stride, start);
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

template <class T, bool is_fused>
KDA_CHECK_TEAM_APART void product(const SumOrder& order, std::size_t rows, std::size_t columns,
                                  std::size_t depth, Factor<T> a, const T* b, std::size_t b_stride, T* c,
                                  std::size_t c_stride, Start start);

/// The same of operands that are rounded as they are taken: once, a panel of columns after the other.
template <class T, bool is_fused>
void product_of_rounded(const SumOrder& order, std::size_t rows, std::size_t columns, std::size_t depth,
                        Factor<T> a, const T* b, std::size_t b_stride, T* c, std::size_t c_stride,
                        Start start) {
  constexpr std::size_t wide = 64, high = 16;
  SumOrder of_rounded = order;
  of_rounded.of_operands = of_rounded.core.of_operands = Rounding::none;
  const std::unique_ptr<T[]> memory(new T[depth * (wide + high)]);
  T *const panel = memory.get(), *const lines = panel + depth * wide;
  for (std::size_t column = 0; column < columns; column += wide) {
    const std::size_t across = columns - column < wide ? columns - column : wide;
    for (std::size_t d = 0; d < depth; ++d) {
      std::copy_n(b + d * b_stride + column, across, panel + d * across);
      round_array(order.of_operands, panel + d * across, across);
    }
    for (std::size_t row = 0; row < rows; row += high) {
      const std::size_t down = rows - row < high ? rows - row : high;
      for (std::size_t i = 0; i < down; ++i)
        for (std::size_t d = 0; d < depth; ++d)
          lines[i * depth + d] = a.data[(row + i) * a.row_stride + d * a.depth_stride];
      round_array(order.of_operands, lines, down * depth);
      product<T, is_fused>(of_rounded, down, across, depth, Factor<T>{lines, depth, 1}, panel, across,
                           c + row * c_stride + column, c_stride, start);
    }
  }
}

/// C[rows][columns] (+)= A[rows][depth] B[depth][columns]; columns is a multiple of 16. Out of line: one copy
/// of its code serves all, and is small beside what it does.
template <class T, bool is_fused>
KDA_CHECK_TEAM_APART void product(const SumOrder& order, std::size_t rows, std::size_t columns,
                                  std::size_t depth, Factor<T> a, const T* b, std::size_t b_stride, T* c,
                                  std::size_t c_stride, Start start) {
  if constexpr (sizeof(T) == sizeof(float))
    if (order.of_operands != Rounding::none && !order.core.splits)
      return product_of_rounded<T, is_fused>(order, rows, columns, depth, a, b, b_stride, c, c_stride, start);
  if (!order.is_running())
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

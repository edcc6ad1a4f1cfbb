// Sums over the rows of a pack of columns, and along rows, in any order. On a GPU those whose partial sums
// find room in registers have them there: arrays that are indexed by what is not known before stand in its
// memory.
#pragma once

#include "kda/kernels/sums/reduction.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

#ifdef __CUDACC__

/// pairwise_sum() of a whole number of sixteen terms, up to 256: partial sums stay in registers.
template <class Pack, class Term>
KDA_CHECK_THREAD Pack pairwise_sum_of_sixteens(bool is_fused, std::size_t depth, const Term& term) {
  constexpr unsigned level_count = 5;
  Pack levels[level_count];
  unsigned filled = 0;  // bit l: levels[l] holds the sum of 16 * 2^l terms
  for (std::size_t from = 0; from < depth; from += 16) {
    Pack sums[8];
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      const Factors<Pack> first = term(from + 2 * i), second = term(from + 2 * i + 1);
      sums[i] = multiply_add_pack(is_fused, second.a, second.b, first.a * first.b);
    }
#pragma unroll
    for (unsigned half = 4; half > 0; half /= 2)
#pragma unroll
      for (unsigned i = 0; i < half; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
    bool is_kept = false;
#pragma unroll
    for (unsigned level = 0; level < level_count; ++level) {
      if (is_kept) continue;
      is_kept = (filled >> level & 1) == 0;
      if (is_kept)
        levels[level] = sums[0];
      else
        sums[0] = levels[level] + sums[0];
      filled ^= 1U << level;
    }
  }
  Pack total = Pack::zero();
  bool any = false;
#pragma unroll
  for (unsigned level = 0; level < level_count; ++level)
    if (filled >> level & 1) {
      total = any ? levels[level] + total : levels[level];
      any = true;
    }
  return total;
}

/// tree_sum() of a whole number of `width` terms: its running sums stay in registers.
template <unsigned width, class Pack, class Term>
KDA_CHECK_THREAD Pack tree_sum_of_whole_rows(bool is_fused, std::size_t depth, const Term& term) {
  Pack sums[width];
#pragma unroll
  for (unsigned lane = 0; lane < width; ++lane) {
    const Factors<Pack> first = term(lane);
    sums[lane] = first.a * first.b;
  }
  for (std::size_t from = width; from < depth; from += width)
#pragma unroll
    for (unsigned lane = 0; lane < width; ++lane) {
      const Factors<Pack> next = term(from + lane);
      sums[lane] = multiply_add_pack(is_fused, next.a, next.b, sums[lane]);
    }
#pragma unroll
  for (unsigned half = width / 2; half > 0; half /= 2)
#pragma unroll
    for (unsigned lane = 0; lane < half; ++lane) sums[lane] = sums[lane] + sums[lane + half];
  return sums[0];
}

/// a . b, in the order asked for.
template <class T>
KDA_CHECK_THREAD void dot_of_row(const SumOrder& order, const T* a, const T* b, std::size_t columns, T* dot) {
  ordered_sum(order, columns, PairedRows<T>{a, b, 1}, OneLane<T>::zero(), false).store(dot);
}

#endif

/// The terms of a pack of columns, added up over `rows` rows.
template <class T, class Terms>
KDA_CHECK_THREAD Sixteen<T> sum_over_rows(const SumOrder& order, std::size_t rows, const Terms& terms) {
  using Pack = Sixteen<T>;
  if (order.is_running()) return running_sum(order.is_fused, rows, terms, Pack::zero());
#ifdef __CUDACC__
  const Reduction& reduction = order.reduction;
  if (reduction.kind == ReductionKind::pairwise && rows % 16 == 0 && rows <= 256)
    return pairwise_sum_of_sixteens<Pack>(order.is_fused, rows, terms);
  if (reduction.kind == ReductionKind::tree && reduction.width == warp_lanes && rows > 0 &&
      rows % warp_lanes == 0)
    return tree_sum_of_whole_rows<warp_lanes, Pack>(order.is_fused, rows, terms);
#endif
  return ordered_sum(order, rows, terms, Pack::zero(), false);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

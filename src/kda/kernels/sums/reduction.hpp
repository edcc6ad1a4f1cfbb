// Sums of products in a promised order: the reduction axis. One sum for each lane; lanes never mix. The
// sequential order has a fast path of its own in product.hpp and token/recurrent.hpp; everything here is for
// studying the others.
#pragma once

#include "kda/kernels/sums/exact_sum.hpp"
#include "kda/kernels/sums/sum_terms.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class Pack>
KDA_CHECK_THREAD Pack multiply_add_pack(bool is_fused, const Pack& a, const Pack& b, const Pack& c) {
  return is_fused ? fma(a, b, c) : a * b + c;
}

/// Term after term, onto `sum`.
template <class Pack, class Term>
KDA_CHECK_THREAD Pack running_sum(bool is_fused, std::size_t depth, const Term& term, Pack sum) {
  KDA_CHECK_UNROLLED
  for (std::size_t d = 0; d < depth; ++d) {
    const Factors<Pack> next = term(d);
    sum = multiply_add_pack(is_fused, next.a, next.b, sum);
  }
  return sum;
}

/// (a0 b0 + a1 b1) + (a2 b2 + a3 b3) ...: neighbours first. A binary counter of partial sums: level l holds
/// the sum of 2^(l + 1) terms.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack pairwise_sum(bool is_fused, std::size_t depth, const Term& term) {
  Pack levels[32];
  std::size_t filled = 0;  // bit l: levels[l] holds a sum
  std::size_t d = 0;
  KDA_CHECK_UNROLLED
  for (; d + 1 < depth; d += 2) {
    const Factors<Pack> first = term(d), second = term(d + 1);
    Pack sum = multiply_add_pack(is_fused, second.a, second.b, first.a * first.b);
    std::size_t level = 0;
    for (; filled >> level & 1; ++level) {
      sum = levels[level] + sum;
      filled &= ~(std::size_t{1} << level);
    }
    levels[level] = sum;
    filled |= std::size_t{1} << level;
  }
  Pack total = Pack::zero();
  bool any = false;
  if (d < depth) {
    const Factors<Pack> last = term(d);
    total = last.a * last.b;
    any = true;
  }
  for (std::size_t level = 0; level < 32; ++level)
    if (filled >> level & 1) {
      total = any ? levels[level] + total : levels[level];
      any = true;
    }
  return total;
}

#ifdef __CUDACC__
inline constexpr std::size_t most_sums = widest_tree_on_gpu;
#else
inline constexpr std::size_t most_sums = widest_tree;
#endif
inline constexpr std::size_t warp_lanes = 32;

/// Running sum l takes the terms l, l + width, ...; then the upper half of the sums is added to the lower
/// until one is left: what a warp does with shuffles.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack tree_sum(bool is_fused, std::size_t width, std::size_t depth, const Term& term) {
  Pack sums[most_sums];
  std::size_t used = width < depth ? width : depth;
  if (used == 0) return Pack::zero();
  for (std::size_t lane = 0; lane < used; ++lane) {
    const Factors<Pack> first = term(lane);
    sums[lane] = first.a * first.b;
    KDA_CHECK_UNROLLED
    for (std::size_t d = lane + width; d < depth; d += width) {
      const Factors<Pack> next = term(d);
      sums[lane] = multiply_add_pack(is_fused, next.a, next.b, sums[lane]);
    }
  }
  // A width that is no power of two is filled up with zeros, which change nothing.
  std::size_t half = 1;
  while (half * 2 < width) half *= 2;
  for (; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane + half < used; ++lane) sums[lane] = sums[lane] + sums[lane + half];
    if (used > half) used = half;
  }
  return sums[0];
}

/// Triton's tl.sum: every thread adds up its own elements, the second product rounded and the first one fused
/// onto it; then the lanes of a warp from far to near, where a thread that has one element fuses its own
/// product with that of the other, which is rounded; then warps from far to near. `of_upper_lanes`: what the
/// upper half of the lanes has in the end, where that is another sum.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack triton_sum(bool is_fused, const RowLayout& layout, bool of_upper_lanes,
                                        std::size_t depth, const Term& term) {
  Pack sums[most_sums];
  const std::size_t threads = layout.lanes * layout.warps, together = threads * layout.registers;
  std::size_t padded_depth = together;  // with zeros: Triton's blocks are powers of two
  while (padded_depth < depth) padded_depth *= 2;
  const auto factors = [&](std::size_t d) KDA_CHECK_BODY {
    return d < depth ? term(d) : Factors<Pack>{Pack::zero(), Pack::zero()};
  };
  const bool has_one = layout.registers == 1 && padded_depth == together;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    const auto element = [&](std::size_t i) KDA_CHECK_BODY {
      return i / layout.registers * together + thread * layout.registers + i % layout.registers;
    };
    const Factors<Pack> first = factors(element(0));
    if (has_one) {
      sums[thread] = first.a * first.b;
      continue;
    }
    const Factors<Pack> second = factors(element(1));
    sums[thread] = multiply_add_pack(is_fused, first.a, first.b, second.a * second.b);
    KDA_CHECK_UNROLLED
    for (std::size_t i = 2; element(i) < padded_depth; ++i) {
      const Factors<Pack> next = factors(element(i));
      sums[thread] = multiply_add_pack(is_fused, next.a, next.b, sums[thread]);
    }
  }
  for (std::size_t half = layout.lanes / 2; half > 0; half /= 2)
    for (std::size_t warp = 0; warp < layout.warps; ++warp)
      for (std::size_t lane = 0; lane < half; ++lane) {
        const std::size_t lower = warp * layout.lanes + lane, upper = lower + half;
        if (has_one && half == layout.lanes / 2) {
          const std::size_t own = of_upper_lanes ? upper : lower, other = of_upper_lanes ? lower : upper;
          const Factors<Pack> product = factors(own);
          sums[lower] = multiply_add_pack(is_fused, product.a, product.b, sums[other]);
        } else {
          sums[lower] = sums[lower] + sums[upper];
        }
      }
  for (std::size_t half = layout.warps / 2; half > 0; half /= 2)
    for (std::size_t warp = 0; warp < half; ++warp)
      sums[warp * layout.lanes] = sums[warp * layout.lanes] + sums[(warp + half) * layout.lanes];
  return sums[0];
}

#ifndef __CUDACC__
/// What a lane has of a row, elements first, ..., first + registers - 1, first + together, ..., in another
/// order than from the first on: two running sums, or neighbours first.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack own_sum(bool is_fused, const RowLayout& layout, std::size_t first,
                                     std::size_t depth, const Term& term) {
  const std::size_t registers = layout.registers, together = layout.lanes * layout.warps * registers;
  const std::size_t from_first = first < depth ? depth - first : 0, rest = from_first % together;
  const std::size_t count = from_first / together * registers + (rest < registers ? rest : registers);
  const auto own = [&](std::size_t i) { return term(first + i / registers * together + i % registers); };
  if (layout.own == OwnSum::pairs)  // of two the first one's product is fused
    return pairwise_sum<Pack>(is_fused, count,
                              [&](std::size_t i) { return own((i ^ 1) < count ? i ^ 1 : i); });
  Pack sums[2] = {Pack::zero(), Pack::zero()};
  for (std::size_t i = 0; i < count; ++i) {
    const Factors<Pack> next = own(i);
    sums[i % 2] = multiply_add_pack(is_fused, next.a, next.b, sums[i % 2]);
  }
  return sums[0] + sums[1];
}
#endif

/// Every thread adds up its own elements from zero; then the lanes of a warp from far to near, then warps.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack lane_sum(bool is_fused, const RowLayout& layout, std::size_t depth,
                                      const Term& term) {
  Pack sums[most_sums];
  const std::size_t threads = layout.lanes * layout.warps, together = threads * layout.registers;
  for (std::size_t thread = 0; thread < threads; ++thread) {
#ifndef __CUDACC__
    if (layout.own != OwnSum::running) {
      sums[thread] = own_sum<Pack>(is_fused, layout, thread * layout.registers, depth, term);
      continue;
    }
#endif
    sums[thread] = Pack::zero();
    for (std::size_t first = thread * layout.registers; first < depth; first += together)
      for (std::size_t d = first; d < first + layout.registers && d < depth; ++d) {
        const Factors<Pack> next = term(d);
        sums[thread] = multiply_add_pack(is_fused, next.a, next.b, sums[thread]);
      }
  }
  for (std::size_t half = layout.lanes / 2; half > 0; half /= 2)
    for (std::size_t thread = 0; thread < threads; ++thread)
      if (thread % layout.lanes < half) sums[thread] = sums[thread] + sums[thread + half];
  for (std::size_t half = layout.warps / 2; half > 0; half /= 2)
    for (std::size_t warp = 0; warp < half; ++warp)
      sums[warp * layout.lanes] = sums[warp * layout.lanes] + sums[(warp + half) * layout.lanes];
  return sums[0];
}

#ifndef __CUDACC__
/// What XLA's library for CPUs makes of a sum along a row: products are rounded; sixteen running sums of
/// every sixteenth of 64 terms, onto which those of the next 64 are added; then halves onto halves.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack xla_sum(std::size_t depth, const Term& term) {
  constexpr std::size_t together = 4 * xla_lanes;
  Pack totals[xla_lanes];
  for (std::size_t lane = 0; lane < xla_lanes; ++lane) {
    totals[lane] = Pack::zero();
    for (std::size_t from = lane; from < depth; from += together) {
      Pack sum = Pack::zero();
      for (std::size_t d = from; d < from - lane + together && d < depth; d += xla_lanes) {
        const Factors<Pack> next = term(d);
        sum = sum + next.a * next.b;
      }
      totals[lane] = totals[lane] + sum;
    }
  }
  for (std::size_t half = xla_lanes / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) totals[lane] = totals[lane] + totals[lane + half];
  return totals[0];
}
#endif

/// Runs of `width` terms, each from zero; the sums of the runs from the first upwards.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack block_sum(bool is_fused, std::size_t width, std::size_t depth,
                                       const Term& term) {
  Pack total = Pack::zero();
  for (std::size_t from = 0; from < depth; from += width) {
    Pack sum = Pack::zero();
    const std::size_t to = from + width < depth ? from + width : depth;
    KDA_CHECK_UNROLLED
    for (std::size_t d = from; d < to; ++d) {
      const Factors<Pack> next = term(d);
      sum = multiply_add_pack(is_fused, next.a, next.b, sum);
    }
    total = from == 0 ? sum : total + sum;
  }
  return total;
}

/// Who adds up a sum where the arithmetic is a GPU's: the lanes of a warp what runs along a row (norms,
/// predictions, read-outs), one thread an element of a product.
enum class Adder : std::uint8_t { warp, thread };

/// How a sum is formed.
struct SumOrder {
  Reduction reduction;
  bool is_fused;
  Adder adder = Adder::warp;
  TensorCore core = {};                   ///< of a product (product.hpp)
  Rounding of_operands = Rounding::none;  ///< as a product takes them
  RowLayout layout{};
  bool of_upper_lanes = false;  ///< of a row of one element a thread: who asks

  /// One running sum from the first term on: there are fast paths for it.
  KDA_CHECK_THREAD bool is_running() const {
    return reduction.kind == ReductionKind::sequential ||
           ((reduction.kind == ReductionKind::simt || reduction.kind == ReductionKind::xla) &&
            adder == Adder::thread);
  }
};

/// The order of a product, and how it takes its operands.
KDA_CHECK_THREAD SumOrder product_order(const Operations& operations, const TensorCore& core,
                                        Rounding of_operands) {
  SumOrder order{operations.reduction, operations.is_fused, Adder::thread, core};
  order.of_operands = order.core.of_operands = of_operands;
  return order;
}

/// Of sums along rows, whose layout is not known.
KDA_CHECK_THREAD SumOrder sums_of_rows(const Operations& operations) {
  return {operations.reduction, operations.is_fused};
}

/// Of sums over the columns of a token form's state.
KDA_CHECK_THREAD SumOrder sums_of_columns(const Operations& operations) {
  SumOrder order = sums_of_rows(operations);
  order.layout = operations.columns;
  return order;
}

/// start + sum over d < depth of a b, in the order asked for. Under `mma` these are the sums that no tensor
/// core forms: the tree of a warp adds them.
template <class Pack, class Term>
KDA_CHECK_THREAD_APART Pack ordered_sum(const SumOrder& order, std::size_t depth, const Term& term,
                                        const Pack& start, bool has_start) {
  const auto with_start = [&](const Pack& sum) { return has_start ? start + sum : sum; };
  const auto width = static_cast<std::size_t>(order.reduction.width);
  if (order.is_running()) return running_sum(order.is_fused, depth, term, start);
  switch (order.reduction.kind) {
    case ReductionKind::pairwise:
      return with_start(pairwise_sum<Pack>(order.is_fused, depth, term));
    case ReductionKind::tree:
      return with_start(tree_sum<Pack>(order.is_fused, width, depth, term));
    case ReductionKind::blocks:
      return with_start(block_sum<Pack>(order.is_fused, width, depth, term));
    case ReductionKind::triton:
    case ReductionKind::triton_rows:  // kernels are told triton
      if (order.layout.registers > 0)
        return with_start(triton_sum<Pack>(order.is_fused, order.layout, order.of_upper_lanes, depth, term));
      return with_start(tree_sum<Pack>(order.is_fused, warp_lanes, depth, term));
    case ReductionKind::lanes:
    case ReductionKind::lanes_paired:  // kernels are told lanes
    case ReductionKind::split:
      if (order.layout.registers > 0)
        return with_start(lane_sum<Pack>(order.is_fused, order.layout, depth, term));
      return with_start(tree_sum<Pack>(order.is_fused, warp_lanes, depth, term));
    case ReductionKind::xla:
#ifndef __CUDACC__
      return with_start(xla_sum<Pack>(depth, term));
#endif
    case ReductionKind::mma:
    case ReductionKind::simt:
      return with_start(tree_sum<Pack>(order.is_fused, warp_lanes, depth, term));
    case ReductionKind::sequential:
    case ReductionKind::exact:
      break;
  }
  return exact_sum<Pack>(depth, term, start);
}

#ifndef __CUDACC__
// In sums.cpp.
extern template Sixteen<float> ordered_sum(const SumOrder&, std::size_t, const WeightedRows<float>&,
                                           const Sixteen<float>&, bool);
extern template Sixteen<float> ordered_sum(const SumOrder&, std::size_t, const PairedRows<float>&,
                                           const Sixteen<float>&, bool);
extern template Sixteen<float> ordered_sum(const SumOrder&, std::size_t, const PairedColumns<float>&,
                                           const Sixteen<float>&, bool);
extern template Sixteen<double> ordered_sum(const SumOrder&, std::size_t, const WeightedRows<double>&,
                                            const Sixteen<double>&, bool);
extern template Sixteen<double> ordered_sum(const SumOrder&, std::size_t, const PairedRows<double>&,
                                            const Sixteen<double>&, bool);
extern template Sixteen<double> ordered_sum(const SumOrder&, std::size_t, const PairedColumns<double>&,
                                            const Sixteen<double>&, bool);
#endif

}  // namespace kda_check::kda::KDA_CHECK_ISA

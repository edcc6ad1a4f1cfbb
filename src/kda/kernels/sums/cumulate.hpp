// Running sums of rows: those of the gates.
#pragma once

#include "kda/kernels/lanes/team.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/double_double.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Rows of running sums x[i] += x[i - 1], element by element, each channel for itself: sequential, also where
/// a thread has a channel (`simt`, `lanes`, `split`); one rounding for each sum when exact; runs that are
/// then shifted (`blocks`, `xla`); else the scan tree of a warp, in which x[i] takes the sum that ends just
/// before the block of 1, 2, 4, ... rows it is in.
template <class T>
KDA_CHECK_TEAM_CALLED void cumulate(const Reduction& reduction, T* x, std::size_t rows, std::size_t stride) {
  const auto add_row = [=](std::size_t to, std::size_t from) KDA_CHECK_BODY {
    each(stride, [=](std::size_t k)
                     KDA_CHECK_BODY { x[to * stride + k] = x[from * stride + k] + x[to * stride + k]; });
  };
  if (reduction.kind == ReductionKind::sequential || reduction.kind == ReductionKind::simt ||
      is_by_lanes(reduction)) {
    for (std::size_t i = 1; i < rows; ++i) add_row(i, i - 1);
  } else if (reduction.kind == ReductionKind::exact) {
    each(stride, [=](std::size_t k) KDA_CHECK_BODY {
      numeric::DoubleDouble sum{0.0};
      for (std::size_t i = 0; i < rows; ++i) {
        const auto next = numeric::two_sum(sum.hi, static_cast<double>(x[i * stride + k]));
        const bool finite = next.hi - next.hi == 0;  // else the error terms are NaN, and the sum stays
        sum = finite ? numeric::quick_two_sum(next.hi, next.lo + sum.lo) : numeric::DoubleDouble{next.hi};
        x[i * stride + k] = finite ? numeric::round_to<T>(sum) : static_cast<T>(next.hi);
      }
    });
  } else if (reduction.kind == ReductionKind::blocks || reduction.kind == ReductionKind::xla) {
    const auto width =
        reduction.kind == ReductionKind::xla ? xla_lanes : static_cast<std::size_t>(reduction.width);
    for (std::size_t i = 1; i < rows; ++i)
      if (i % width != 0) add_row(i, i - 1);
    for (std::size_t i = width; i < rows; ++i) add_row(i, i / width * width - 1);
  } else {
    for (std::size_t side = 1; side < rows; side *= 2)
      for (std::size_t i = side; i < rows; ++i)
        if ((i / side) % 2 == 1) add_row(i, i / side * side - 1);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

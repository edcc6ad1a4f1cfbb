// Sums of products that are rounded once.
#pragma once

#include "kda/kernels/lanes/team.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/double_double.hpp"
#include "numeric/double_double_functions.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// A sum of products in three words, about 159 bits: in fp64 terms may cancel to their last place and the
/// rest still is rounded once.
struct LongSum {
  double high, middle = 0, low = 0;

  KDA_CHECK_THREAD void add_product(double x, double y) {
    const auto product = numeric::two_product(x, y);
    const auto first = numeric::two_sum(high, product.hi);
    const auto second = numeric::two_sum(middle, first.lo), third = numeric::two_sum(second.hi, product.lo);
    high = first.hi;
    middle = third.hi;
    low = low + (second.lo + third.lo);
  }
  template <class T>
  KDA_CHECK_THREAD T rounded() const {
    if (high - high != 0) return static_cast<T>(high);  // beyond fp64's range the error terms are NaN
    const auto sum = numeric::two_sum(high, middle);
    const double rest = numeric::round_to_odd(numeric::two_sum(sum.lo, low));
    return numeric::round_to<T>(numeric::two_sum(sum.hi, rest));
  }
};

/// start + all products, rounded once.
template <class Pack, class Term>
KDA_CHECK_THREAD_CALLED Pack exact_sum(std::size_t depth, const Term& term, const Pack& start) {
  using T = typename Pack::Scalar;
  T a[Pack::count], b[Pack::count], result[Pack::count];
  LongSum sums[Pack::count];
  start.store(result);
  for (std::size_t lane = 0; lane < Pack::count; ++lane) sums[lane].high = static_cast<double>(result[lane]);
  for (std::size_t d = 0; d < depth; ++d) {
    const auto next = term(d);
    next.a.store(a);
    next.b.store(b);
    for (std::size_t lane = 0; lane < Pack::count; ++lane)
      sums[lane].add_product(static_cast<double>(a[lane]), static_cast<double>(b[lane]));
  }
  for (std::size_t lane = 0; lane < Pack::count; ++lane) result[lane] = sums[lane].template rounded<T>();
  return Pack::load(result);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

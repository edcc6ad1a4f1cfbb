// What sums of products are made of.
#pragma once

#include "kda/arithmetic/rounded.hpp"
#include "kda/kernels/lanes/team.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class Pack>
struct Factors {
  Pack a, b;
};

// What sums are made of: term d of 16 sums at a time. There are three shapes of it, so that every order of
// sums is compiled three times for each element type and not once for each place that adds something up.

/// weight_d times the lanes of row d.
template <class T>
struct WeightedRows {
  const T* weights;
  std::size_t weight_stride;
  const T* rows;
  std::size_t stride;

  KDA_CHECK_THREAD Factors<Sixteen<T>> operator()(std::size_t d) const {
    return {Sixteen<T>::broadcast(weights[d * weight_stride]), Sixteen<T>::load(rows + d * stride)};
  }
};

/// The lanes of row d of a times those of row d of b.
template <class T>
struct PairedRows {
  const T *a, *b;
  std::size_t stride;

  KDA_CHECK_THREAD Factors<Sixteen<T>> operator()(std::size_t d) const {
    return {Sixteen<T>::load(a + d * stride), Sixteen<T>::load(b + d * stride)};
  }
};

/// The rows of a matrix; with stride 0 one row, again and again.
template <class T>
struct Rows {
  const T* first;
  std::size_t stride;

  KDA_CHECK_THREAD T operator()(std::size_t row, std::size_t column) const {
    return first[row * stride + column];
  }
};

/// Lane l is element d of row l of a times that of row l of b; lanes from `count` on are zero.
template <class T>
struct PairedColumns {
  Rows<T> a, b;
  std::size_t count;

  KDA_CHECK_THREAD Factors<Sixteen<T>> operator()(std::size_t d) const {
    T left[Sixteen<T>::count] = {}, right[Sixteen<T>::count] = {};
    for (std::size_t row = 0; row < count; ++row) {
      left[row] = a(row, d);
      right[row] = b(row, d);
    }
    return {Sixteen<T>::load(left), Sixteen<T>::load(right)};
  }
};

}  // namespace kda_check::kda::KDA_CHECK_ISA

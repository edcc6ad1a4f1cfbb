#include "tensor/odd_values.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/threads/parallel.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::tensor {

namespace {

template <class IsOdd>
OddValues counted(const Tensor& tensor, int threads, const IsOdd& is_odd) {
  constexpr std::size_t piece = std::size_t{1} << 18;
  const std::size_t size = tensor.size(), pieces = (size + piece - 1) / piece;
  std::vector<std::size_t> counts(pieces);
  OddValues odd;
  numeric::visit_storage(tensor.dtype(), [&](auto tag) {
    const auto elements = tensor.elements<decltype(tag)>();
    const auto end_of = [&](std::size_t i) { return std::min(size, (i + 1) * piece); };
    parallel_for(pieces, threads, [&](std::size_t i, int) {
      std::size_t count = 0;
      for (std::size_t at = i * piece; at < end_of(i); ++at) count += is_odd(numeric::widen(elements[at]));
      counts[i] = count;
    });
    for (std::size_t i = pieces; i-- > 0;) {
      odd.count += counts[i];
      if (counts[i] == 0) continue;
      odd.first = i * piece;
      while (!is_odd(numeric::widen(elements[odd.first]))) ++odd.first;
    }
  });
  return odd;
}

}  // namespace

OddValues not_finite(const Tensor& tensor, int threads) {
  return counted(tensor, threads, [](double x) { return !std::isfinite(x); });
}

OddValues above_zero(const Tensor& tensor, int threads) {
  return counted(tensor, threads, [](double x) { return x > 0; });
}

}  // namespace kda_check::tensor

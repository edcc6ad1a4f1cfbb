// Sums of squares over a tensor, head by head: heads may come in any order.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "judge/measures/tensor_axes.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::judge {

/// += the squares of values, in their order. What is not finite does not count.
void add_finite_squares(numeric::ProductSum& sum, std::span<const double> values);

class HeadEnergies {
 public:
  HeadEnergies(std::string_view tensor, const tensor::Shape& shape, bool state_v_first)
      : axes_(tensor, shape, state_v_first), sums_(axes_.heads) {}

  /// Elements [begin, begin + count): whole heads of tokens or states, each head's in their order.
  void add(std::size_t begin, std::size_t count, const double* values, int threads = 1);
  numeric::ProductSum total() const;

 private:
  const TensorAxes axes_;
  std::vector<numeric::ProductSum> sums_;
};

}  // namespace kda_check::judge

// A loss for a problem: random gradients of its output and of its final state.
#pragma once

#include "kda/problem/problem.hpp"
#include "kda/problem/schema.hpp"
#include "support/random.hpp"

namespace kda_check::test {

/// do and dht, standard normal; do in the element type of v.
inline void add_loss(kda::Problem& problem, std::uint64_t seed = 1) {
  Random random(seed + 100);
  const auto filled = [&](const char* name, numeric::DType dtype) {
    tensor::Tensor tensor(
        name, dtype,
        expected_shape(*kda::find_spec(name), problem.dimensions(), problem.options.state_v_first));
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, random.normal());
    return tensor;
  };
  problem.output_gradient = filled("do", problem.v.dtype());
  problem.state_gradient = filled("dht", numeric::DType::fp32);
  problem.validate();
}

inline kda::Problem with_loss(kda::Problem problem, std::uint64_t seed = 1) {
  add_loss(problem, seed);
  return problem;
}

}  // namespace kda_check::test

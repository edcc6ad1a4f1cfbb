#include "kda/bounds/zero_pattern.hpp"

#include <cmath>

#include "numeric/random.hpp"

namespace kda_check::kda {

namespace {

using tensor::Tensor;

/// `usual`(element) where the other has a number that is not zero, or any number if `zero_is_a_number`.
template <class Usual>
Tensor of_same_zeros(const Tensor& tensor, bool zero_is_a_number, Usual usual) {
  Tensor other = tensor.clone();
  for (std::size_t i = 0; i < other.size(); ++i) {
    const double value = other.value(i);
    if (std::isfinite(value) && (zero_is_a_number || value != 0)) other.set(i, usual(i));
  }
  return other;
}

}  // namespace

Problem of_same_zeros(const Problem& problem) {
  const bool is_gated = problem.options.gate != Gate::none, is_logit = problem.options.beta_sigmoid;
  const double key_size = 1 / std::sqrt(static_cast<double>(problem.dimensions().K));
  std::uint64_t stream = 0;
  Problem other = with_inputs(problem, [&](const InputSlot& slot, const Tensor& tensor) {
    const numeric::Random random(0, stream++);
    const auto between = [&](double least, double most) {
      return [=](std::size_t i) { return random.uniform(i, least, most); };
    };
    // Gates, biases and logits of zero are as good as others.
    if (slot.name == "g")
      return is_gated ? of_same_zeros(tensor, true, between(-8, -7))
                      : of_same_zeros(tensor, true, between(-0x1p-10, -0x1p-11));
    if (slot.name == "A_log" || slot.name == "dt_bias")
      return of_same_zeros(tensor, true, between(0.25, 0.5));
    if (slot.name == "erase" || slot.name == "write") return of_same_zeros(tensor, false, between(0.25, 0.5));
    if (slot.name == "beta")
      return is_logit ? of_same_zeros(tensor, true, between(-1, -0.5))
                      : of_same_zeros(tensor, false, between(0.25, 0.5));
    const double size = slot.name == "k" ? key_size : 1;
    return of_same_zeros(tensor, false, [&](std::size_t i) {
      const double value = random.uniform(2 * i, 0.5, 1) * size;
      return random.below(2 * i + 1, 2) == 0 ? value : -value;
    });
  });
  if (problem.options.scale) other.options.scale = *problem.options.scale == 0 ? 0.0 : 1.0;
  if (problem.options.lower_bound) other.options.lower_bound = -1;
  return other;
}

}  // namespace kda_check::kda

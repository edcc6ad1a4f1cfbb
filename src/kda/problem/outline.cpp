#include "kda/problem/outline.hpp"

#include <algorithm>

namespace kda_check::kda {

Outline::Outline(const Problem& problem)
    : options(problem.options),
      dimensions(problem.dimensions()),
      cu_seqlens(problem.cu_seqlens),
      has_pool(problem.pool != nullptr) {
  for (const InputSlot& slot : input_slots)
    if (const tensor::Tensor* const tensor = slot.of(problem))
      inputs.emplace_back(slot.name, tensor->dtype());
}

std::optional<numeric::DType> Outline::dtype_of(std::string_view input) const {
  for (const auto& [name, dtype] : inputs)
    if (name == input) return dtype;
  return std::nullopt;
}

numeric::DType Outline::operand_dtype() const {
  numeric::DType least = dtype();
  for (const char* const name : {"k", "v"})
    if (const auto other = dtype_of(name);
        other && numeric::format_of(*other).precision < numeric::format_of(least).precision)
      least = *other;
  return least;
}

Outline Outline::rounded_to(numeric::DType dtype) const {
  Outline copy = *this;
  for (auto& [name, stored] : copy.inputs)
    if (std::ranges::find(input_slots, name, &InputSlot::name)->is_rounded) stored = dtype;
  return copy;
}

}  // namespace kda_check::kda

// What kernels ask of the arithmetic at each operation, and how their arrays are padded. Plain data.
#pragma once

#include <cstddef>

#include "kda/arithmetic.hpp"

namespace kda_check::kda {

/// Row strides of scratch arrays are multiples of this many elements, whatever the instruction set.
inline constexpr std::size_t padding = 32;
constexpr std::size_t padded(std::size_t count) { return (count + padding - 1) / padding * padding; }

struct Operations {
  bool is_fused = true;
  Exponential exponential = Exponential::exact;
  Reduction reduction{};
};
constexpr Operations operations_of(const Arithmetic& arithmetic) {
  return {arithmetic.contraction == Contraction::fused, arithmetic.exponential, arithmetic.reduction};
}

}  // namespace kda_check::kda

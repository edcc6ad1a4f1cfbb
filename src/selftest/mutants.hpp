// Wrong kernels that the gate must catch, and one written another way that it must let pass
// (docs/selftest.md).
#pragma once

#include <span>
#include <string_view>

#include "kda/variants.hpp"

namespace kda_check::selftest {

struct Mutant {
  std::string_view name, what;
  std::string_view like;  ///< the variant whose row it has: its limits are those of this one
  numeric::DType dtype;
  bool healthy;  ///< not wrong at all
  kda::Answer (*run)(const kda::Problem&, const kda::RunOptions&);
};
std::span<const Mutant> mutants();

/// The same for gradients: the forward pass is the healthy one of `like`.
struct BackwardMutant {
  std::string_view name, what, like;
  numeric::DType dtype;
  bool healthy;
  kda::GradientTensors (*run)(const kda::Problem&, const kda::RunOptions&);
};
std::span<const BackwardMutant> backward_mutants();

}  // namespace kda_check::selftest

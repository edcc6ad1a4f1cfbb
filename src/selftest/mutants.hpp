// Wrong kernels that the gate must catch, and one written another way that it must let pass
// (docs/selftest.md).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kda/variants/variants.hpp"

namespace kda_check::selftest {

/// A wrong kernel of one precision, wrong in one size.
struct Mutant {
  std::string id;  ///< its name among variants: no other of its dtype has it
  std::string_view name, what;
  std::string size;       ///< "1 %", "10 % in one head"; empty: it is there or not
  bool may_hide;          ///< so small that a single problem need not show it
  std::string_view like;  ///< the variant whose row it has: its limits are those of this one
  numeric::DType dtype;
  bool healthy;  ///< not wrong at all
  kda::Answer (*run)(const kda::Problem&, const kda::RunOptions&);
};
/// In the order of precisions: fp64, fp32, bf16, fp16.
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

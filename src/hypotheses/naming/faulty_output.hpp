// A row of the tables of faults by its name, and what a kernel gives that has this fault and else computes as
// a variant of ours.
#pragma once

#include <optional>
#include <string>

#include "hypotheses/naming/faults.hpp"
#include "hypotheses/naming/moves.hpp"
#include "hypotheses/naming/pool_faults.hpp"
#include "hypotheses/naming/reference_backward.hpp"

namespace kda_check::hypotheses {

/// A row of one table, or of none.
struct NamedFault {
  const Fault* of_output = nullptr;
  const GradientFault* of_gradients = nullptr;
  const PoolFault* of_pool = nullptr;
  std::optional<plain::MovedMatrix> of_matrix = {};
  std::optional<std::size_t> at = {};  ///< nothing: where selftest has it

  /// And known in o and the final state alone.
  bool is_of_outputs() const { return of_output != nullptr || of_matrix; }
  bool applies(const kda::Problem& problem) const;
};
/// "exp2", "write_lost:77" (a token), "gate_factor:0.5", "inverse_doubling_32_in_bf16". Throws Error{usage}.
NamedFault fault_named(const std::string& text);

/// The output of a kernel before it is stored in its element type.
kda::Tensors unrounded(const kda::Problem& problem, const kda::Variant& variant, kda::RunOptions options);

/// The problem as a kernel with the fault reads it.
Interpretation misread(const kda::Problem& problem, const Fault& fault, std::optional<std::size_t> at,
                       std::size_t chunk_size);
/// What the healthy variant gives, and what the reading changes of that in fp64, stored once.
kda::Answer misreading_answer(const kda::Problem& problem, const Interpretation& reading,
                              const kda::Variant& variant, const kda::RunOptions& options);

/// All that such a kernel leaves: of a call on a pool the pool; gradients where it is they that are wrong, or
/// nothing. Throws Error{usage} where the fault changes nothing.
kda::Tensors faulty_output(const NamedFault& fault, const kda::Problem& problem, const kda::Variant& variant,
                           const kda::RunOptions& options);

}  // namespace kda_check::hypotheses

// What a caller does around a kernel: scale=before, heads=repeated.
#pragma once

#include <optional>

#include "kda/problem/passes.hpp"

namespace kda_check::kda {

/// The call that the kernel itself gets, and the way back from its results.
class OuterCall {
 public:
  Problem problem;
  RunOptions options;  ///< without the two words

  /// Of the gradients of q and k those of the caller's tensors.
  Tensors results(Tensors inner) const;

 private:
  friend std::optional<OuterCall> outer_call(const Problem& problem, const RunOptions& options, Pass pass);
  std::size_t group_ = 1;  ///< heads of a gradient that are added up
  double scale_of_q_ = 1;
};

/// None where the arithmetic asks for nothing around the kernel.
std::optional<OuterCall> outer_call(const Problem& problem, const RunOptions& options, Pass pass);

}  // namespace kda_check::kda

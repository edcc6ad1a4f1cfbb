// Which roundings a class of kernels may have. A declaration or a preset says how a kernel computes; it never
// licenses.
#pragma once

#include <string>
#include <vector>

#include "hypotheses/hypothesis.hpp"

namespace kda_check::hypotheses {

/// fp32 licenses none; tf32 operands of products in tf32, and of tensors in 16 bits what keeps as many; bf16
/// and fp16 operands, stages and what is stored. None licenses beta, gates, their sums, decays, the initial
/// or the carried state, nor a state stored more coarsely than `states_are_narrow` says.
struct Licence {
  numeric::ComputeFormat compute;
  numeric::DType storage;
  bool states_are_narrow = false;  ///< an input or output state is stored in 16 bits
};

/// What a class licenses of a computation: its other roundings are left out, coarser ones of operands made as
/// coarse as the class is.
Hypothesis licensed(Hypothesis known, const Licence& licence, const kda::Problem& problem);

/// Of a computation, what licensed() changes: "beta is rounded to bf16".
std::vector<std::string> unlicensed(const Hypothesis& known, const Licence& licence,
                                    const kda::Problem& problem);

}  // namespace kda_check::hypotheses

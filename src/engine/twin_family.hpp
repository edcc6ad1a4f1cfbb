// The family of twins: the ways to compute that this program emulates, one table. To add one, add a row
// (twin_family.cpp); every structure should stand there twice, so that one of a kind is not held to be odd.
#pragma once

#include <vector>

#include "judge/limits.hpp"
#include "kda/passes.hpp"

namespace kda_check::engine {

struct Twin {
  const kda::Variant* variant;
  kda::RunOptions options;  ///< on one thread
};

/// Those whose products are in `compute`, that store o in `dtype` and are of a form that an answer of `form`
/// may have.
std::vector<Twin> twin_family(const kda::Problem& problem, kda::Pass pass, numeric::ComputeFormat compute,
                              numeric::DType dtype, judge::Form form);

}  // namespace kda_check::engine

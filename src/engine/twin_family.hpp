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

/// Whether it computes so: "chunk", "recurrence", "chunk-size=16", or words of --arithmetic, without their
/// numbers any of them ("decay=anchor-mid").
bool computes(const Twin& twin, std::string_view way);
/// Throws Error{usage} for a way of computing that there is not.
void check_way(std::string_view way);

}  // namespace kda_check::engine

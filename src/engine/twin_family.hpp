// The family of twins: the ways to compute that this program emulates, one table. To add one, add a row
// (twin_family.cpp); every structure should stand there twice, so that one of a kind is not held to be odd.
#pragma once

#include <vector>

#include "engine/manner.hpp"
#include "judge/limits.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::engine {

struct Twin {
  const kda::Variant* variant;
  kda::RunOptions options;  ///< on one thread
};

/// Those whose products are in `compute`, that store o in `dtype` and are of a form that an answer of `form`
/// may have. `manner`: how the answer says that it computes; one that is not usual has twins of its kind
/// beside the others. `segments`: the parts that chunk forms compute a sequence in.
std::vector<Twin> twin_family(const kda::Problem& problem, kda::Pass pass, numeric::ComputeFormat compute,
                              numeric::DType dtype, judge::Form form, const Manner& manner,
                              const kda::Segments& segments = {});

/// Those of an answer, some ways of computing left out; empty where they are too few for a test.
std::vector<Twin> family_of(const kda::Problem& problem, kda::Pass pass, const Answered& answer,
                            const plan::Names& left_out);
/// The form that its twins are chosen by: where some are left out, nobody knows it.
judge::Form form_for_twins(const Answered& answer, const plan::Names& left_out);

/// Those whose stages are those of an answer in chunks of that size: all rows of the chunk form, in chunks of
/// that size. In 16 bits too a stage is fp32, the sum of the gates, where the orders of sums tell.
std::vector<Twin> stage_family(const kda::Problem& problem, numeric::ComputeFormat compute,
                               numeric::DType dtype, std::size_t chunk_size);

/// Whether it computes so: "chunk", "recurrence", "chunk-size=16", or words of --arithmetic, without their
/// numbers any of them ("decay=anchor-mid").
bool computes(const Twin& twin, std::string_view way);
void leave_out(std::vector<Twin>& family, const std::vector<std::string>& ways);
/// Throws Error{usage} for a way of computing that there is not.
void check_way(std::string_view way);

}  // namespace kda_check::engine

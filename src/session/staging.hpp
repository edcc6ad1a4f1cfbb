// `run --stages`: the named intermediates of the chunk form, of runs and as recorded, against the truth.
#pragma once

#include <vector>

#include "analysis/stage_errors.hpp"
#include "kda/variants.hpp"
#include "report/result.hpp"
#include "session/requests.hpp"
#include "session/sources.hpp"

namespace kda_check::session {

struct StagingRequest {
  std::vector<const kda::Variant*> variants;  ///< those without stages, or that cannot run so, are left out
  std::vector<numeric::DType> dtypes;
  std::vector<std::string> arithmetic;
  std::size_t chunk_size;
  int threads;
  std::size_t memory_budget;
  const kda::Regime& regime;
  kda::Passes passes;  ///< both: only for problems with a loss
};

/// One case for each variant, dtype and recorded group that has stages; backward stages of the variants that
/// have a backward pass. `with_recorded`: the problem is the
/// one the file answers. Throws Error{input} when the stages do not fit the memory budget.
std::vector<report::StageCase> stage_cases(const Source& source, const kda::Problem& problem,
                                           const StagingRequest& request, bool with_recorded);

/// "Aqk of chunk 3 (tokens 192..255), head 1, token 200, column 7" and the values.
std::string describe(const analysis::Divergence& divergence);

/// Stages that the arithmetic rounds to 16 bits, in that format, unless that would change a value: ULPs are
/// then counted in it.
void store_as_rounded(kda::StageTensors& tensors, const kda::CastPoints& casts);

/// What each stage makes of exact inputs: a run in which every stage is given exactly. Backwards too with
/// both `passes`, which `exact` must have then.
kda::StageTensors own_stages(const kda::Problem& problem, const kda::Variant& variant,
                             kda::RunOptions options, const kda::StageTensors& exact,
                             kda::Passes passes = kda::Passes::forward);

/// Throws Error{input} when stages and their truth would take more than `budget` bytes.
void check_stage_memory(const kda::Problem& problem, std::size_t chunk_size, std::size_t budget,
                        kda::Passes passes = kda::Passes::forward);

}  // namespace kda_check::session

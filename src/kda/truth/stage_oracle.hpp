// The stages of the chunk form in double-double, from the inputs exactly as stored: the truth that stages are
// compared with. Unlike the oracle proper it goes chunk by chunk, with one exponential for each pair of
// tokens, so that it cannot overflow where the stages themselves do not; for the backward stages then from
// the last chunk to the first.
#pragma once

#include <vector>

#include "kda/problem/stages.hpp"

namespace kda_check::kda {

/// One stage, indexed like its tensor (StageLayout). Elements that hold nothing are zero; stages of a pass
/// that was not asked for are empty.
struct StageTruth {
  std::vector<double> hi, lo, magnitude;
};
using StageTruths = std::array<StageTruth, stage_count>;

/// About 72 bytes for each element of a stage are held; the work is that of some hundred tokens of the oracle
/// for each chunk. The backward stages are those of the loss <o, do> + <final_state, dht>.
StageTruths run_stage_oracle(const Problem& problem, std::size_t chunk_size, int threads,
                             Passes passes = Passes::forward);

/// The values rounded to `dtype` (fp32 or fp64), to be given to a run; stages without a truth are empty.
StageTensors rounded_stages(const StageTruths& truths, const Problem& problem, std::size_t chunk_size,
                            numeric::DType dtype);

}  // namespace kda_check::kda

// The stages of the chunk form in double-double, from the inputs exactly as stored: the truth that stages are
// compared with. Unlike the oracle proper it goes chunk by chunk, with one exponential for each pair of
// tokens, so that it cannot overflow where the stages themselves do not.
#pragma once

#include <vector>

#include "kda/stages.hpp"

namespace kda_check::kda {

/// One stage, indexed like its tensor (StageLayout). Elements that hold nothing are zero.
struct StageTruth {
  std::vector<double> hi, lo, magnitude;
};
using StageTruths = std::array<StageTruth, stage_count>;

/// About 72 bytes for each element of a stage are held; the work is that of some hundred tokens of the oracle
/// for each chunk.
StageTruths run_stage_oracle(const Problem& problem, std::size_t chunk_size, int threads);

/// The values rounded to `dtype` (fp32 or fp64), to be given to a run.
StageTensors rounded_stages(const StageTruths& truths, const Problem& problem, std::size_t chunk_size,
                            numeric::DType dtype);

}  // namespace kda_check::kda

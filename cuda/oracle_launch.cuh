// Which form of the oracle's recurrence runs.
#pragma once

#include "oracle_few_heads.cuh"
#include "oracle_recurrence.cuh"

namespace kda_check::cuda {

template <class Step, int columns>
void launch_few_heads(const OraclePortion& p, int blocks, int sequences, cudaStream_t stream) {
  const OracleFewShared<Step, columns> shared(p.K);
  launch_on(
      stream, "launching the recurrence of the oracle", oracle_few_heads<Step, columns>,
      dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(p.heads), static_cast<unsigned>(sequences)),
      (shared.warps + oracle_adders) * warp_lanes, shared.bytes(), p);
}

/// That of few heads where it leaves no processor with two blocks.
template <class Step>
void launch_oracle(const OraclePortion& p, int sequences, int processors, cudaStream_t stream) {
  const auto blocks = [&](int columns) { return (p.V + columns - 1) / columns; };
  const auto fits = [&](int columns) {
    return p.K <= widest_of_few &&
           std::size_t(blocks(columns)) * p.heads * sequences <= std::size_t(processors);
  };
  if (fits(2)) return launch_few_heads<Step, 2>(p, blocks(2), sequences, stream);
  if (fits(4)) return launch_few_heads<Step, 4>(p, blocks(4), sequences, stream);
  if (fits(8)) return launch_few_heads<Step, 8>(p, blocks(8), sequences, stream);
  if (fits(16)) return launch_few_heads<Step, 16>(p, blocks(16), sequences, stream);
  const OracleShared shared(p.K);
  launch_on(stream, "launching the recurrence of the oracle", oracle_recurrence<Step>,
            dim3(static_cast<unsigned>(blocks(warp_lanes)), static_cast<unsigned>(p.heads),
                 static_cast<unsigned>(sequences)),
            shared.warps * warp_lanes, shared.bytes(), p);
}

}  // namespace kda_check::cuda

// Which form of the oracle's recurrence runs.
#pragma once

#include "cuda/device/device.hpp"
#include "cuda/truth/few_heads.cuh"
#include "cuda/truth/recurrence.cuh"

namespace kda_check::cuda {

inline dim3 oracle_blocks(const OraclePortion& p, int columns, int sequences) {
  return dim3(static_cast<unsigned>((p.V + columns - 1) / columns), static_cast<unsigned>(p.heads),
              static_cast<unsigned>(sequences));
}

/// That of few heads, if it leaves no processor with two blocks and they find their shared memory. Whether it
/// does.
template <class Step, int columns>
bool launched_few_heads(const OraclePortion& p, int sequences, int processors, cudaStream_t stream) {
  const OracleFewShared<Step, columns> shared(p.K);
  const dim3 blocks = oracle_blocks(p, columns, sequences);
  if (p.K > widest_of_few || shared.bytes() > shared_memory() ||
      std::size_t{blocks.x} * blocks.y * blocks.z > static_cast<std::size_t>(processors))
    return false;
  launch_on(stream, "launching the recurrence of the oracle", oracle_few_heads<Step, columns>, blocks,
            (shared.warps + oracle_adders) * warp_lanes, shared.bytes(), p);
  return true;
}

template <class Step>
void launch_oracle(const OraclePortion& p, int sequences, int processors, cudaStream_t stream) {
  if (launched_few_heads<Step, 2>(p, sequences, processors, stream) ||
      launched_few_heads<Step, 4>(p, sequences, processors, stream) ||
      launched_few_heads<Step, 8>(p, sequences, processors, stream) ||
      launched_few_heads<Step, 16>(p, sequences, processors, stream))
    return;
  const OracleShared shared(p.K);
  launch_on(stream, "launching the recurrence of the oracle", oracle_recurrence<Step>,
            oracle_blocks(p, warp_lanes, sequences), shared.warps * warp_lanes, shared.bytes(), p);
}

}  // namespace kda_check::cuda

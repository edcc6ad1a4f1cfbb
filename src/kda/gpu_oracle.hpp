// The oracle where cuda/ computes it.
#pragma once

#include <algorithm>

#include "kda/oracle.hpp"

namespace kda_check::kda {

inline constexpr std::size_t oracle_block_tokens = 32;

/// Tokens that are handed out at once, on either device. Of some heads as much as of all: threads are started
/// for every piece.
inline std::size_t oracle_tokens_at_once(const Dimensions& d, std::size_t heads) {
  return oracle_block_tokens * std::max<std::size_t>(1, d.HV / heads);
}

/// run_oracle on the GPU. Throws Error{environment} without one.
void run_gpu_oracle(const Problem& problem, OraclePrecision precision, int threads, const OracleSink& sink,
                    const HeadRange& heads);

}  // namespace kda_check::kda

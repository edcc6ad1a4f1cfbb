// The oracle where cuda/ computes it.
#pragma once

#include <algorithm>

#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/oracle.hpp"

namespace kda_check::kda {

inline constexpr std::size_t oracle_block_tokens = 32;

/// Tokens that are handed out at once, on either device. Threads meet behind every piece, and the last to
/// come is waited for: the fewer pieces the better, and of T tokens none much shorter.
inline std::size_t oracle_tokens_at_once(const Dimensions& d, std::size_t heads) {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  const std::size_t all = std::max<std::size_t>(1, (d.T + oracle_block_tokens - 1) / oracle_block_tokens),
                    most = std::clamp<std::size_t>(
                        bytes / (oracle_block_tokens * heads * d.V * 3 * sizeof(double)), 1, all),
                    pieces = (all + most - 1) / most;
  return oracle_block_tokens * ((all + pieces - 1) / pieces);
}

/// run_oracle on the GPU. Throws Error{environment} without one.
void run_gpu_oracle(const Problem& problem, const OracleOptions& options, int threads, const OracleSink& sink,
                    const HeadRange& heads);

/// Fills the gradients of `truths` that have memory, of tokens that belong to a sequence. Throws
/// Error{environment} without a GPU.
void run_gpu_gradient_oracle(const Problem& problem, OraclePrecision precision, std::size_t chunk_size,
                             int threads, GradientTruths& truths);

}  // namespace kda_check::kda

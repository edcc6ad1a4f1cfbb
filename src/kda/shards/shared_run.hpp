// A run of the chunk form that several processes share: rank r has part r of every sequence
// (docs/arithmetic.md, "segments"). Rank 0 has the problem and gets the answer; the others get the tokens of
// their parts. The tensors of a problem have their whole shape everywhere, and memory where they are written.
#pragma once

#include <functional>

#include "base/ranks.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::kda {

/// What a rank did, and what it took.
struct RankCost {
  std::size_t tokens = 0;  ///< of one head
  double seconds = 0;      ///< in all its runs, waiting included
  double busy = 0;         ///< seconds of processors meanwhile
  double megabytes = 0;    ///< at most, of the process
};

/// From now on runs with segments=tree:P are shared, P being their number. Set once, before the first run.
void share_runs(Ranks* ranks);
/// Those that a run is shared among; null: it is not. Runs that are told stages, or tell them, are not.
Ranks* ranks_of(const RunOptions& options);

/// A run of all ranks, on one of them: `run` computes its part. One at a time.
Answer shared_run(const Problem& problem, const RunOptions& options, Ranks& ranks,
                  const std::function<Answer()>& run);

/// run_chunk() (kda/variants/variants.hpp), which shares its runs by shared_run().
using ChunkRun = Answer(const Problem& problem, const RunOptions& options);

/// On the other ranks: runs what rank 0 hands out, until it lets them go. Throws Error{environment} before it
/// computes what takes this rank more bytes than its limit.
void serve(Ranks& ranks, int threads, std::size_t memory_limit, ChunkRun* run);

/// On rank 0: lets the others go. What each of them cost, rank 0 first.
std::vector<RankCost> let_go(Ranks& ranks);

}  // namespace kda_check::kda

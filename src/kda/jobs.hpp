// How the work of a problem is cut: by sequence, by value head, and, where there are too few heads for the
// threads, by tiles of V lanes. Longest sequences first. How it is cut changes no result.
#pragma once

#include <string>
#include <vector>

#include "kda/problem.hpp"
#include "kda/variants.hpp"

namespace kda_check::kda {

struct HeadJob {
  Sequence sequence;
  std::size_t head;
};
std::vector<HeadJob> head_jobs(const Problem& problem);

/// Heads that several workers share, each some tiles of it. What is made of its inputs takes long enough to
/// be made once, too: some blocks of tokens at a time, behind which workers meet.
struct HeadCut {
  std::size_t parts;   ///< of a head; 1: whoever has it has all of it
  std::size_t blocks;  ///< of tokens between meetings

  bool are_inputs_shared() const { return parts > 1; }
  std::size_t first_tile(std::size_t part, std::size_t tiles) const { return tiles * part / parts; }
};

/// `pieces`: for each thread, as far as there are `tiles` of a head; several, for one that comes late or is
/// slow. `block_bytes`: inputs of a block of one head, of which there are `most_blocks` at most.
HeadCut cut_heads(std::size_t heads, std::size_t tiles, int threads, std::size_t pieces,
                  std::size_t block_bytes, std::size_t most_blocks);

/// The value heads of one query head of one sequence: gradients of q and k are summed over them.
struct GroupJob {
  Sequence sequence;
  std::size_t query_head;
};
std::vector<GroupJob> group_jobs(const Problem& problem);

/// Throws Error{environment} when `bytes` of scratch memory on `threads` threads are more than `limit`;
/// `what`: "chunks of 64 rows take"; `chunk_rows`: those of a chunk, 0 where there is none. The hint is an
/// option that would need less.
void refuse_memory(const std::string& what, double bytes, std::size_t threads, std::size_t limit,
                   std::size_t chunk_rows);

/// Memory for an answer in the dtypes that Answer promises.
Answer allocate_answer(const Problem& problem, numeric::DType dtype);

}  // namespace kda_check::kda

// How the work of a problem is cut: by sequence and by value head. Longest sequences first. How it is cut
// changes no result.
#pragma once

#include <string>
#include <vector>

#include "kda/problem/run.hpp"

namespace kda_check::kda {

struct HeadJob {
  Sequence sequence;
  std::size_t head;
};
std::vector<HeadJob> head_jobs(const Problem& problem);

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

/// Memory for an answer in the dtypes that Answer promises. `threads`: that will fill it.
Answer allocate_answer(const Problem& problem, numeric::DType dtype, int threads = 1);

}  // namespace kda_check::kda

// The chunks of a problem, for tests of stages.
#pragma once

#include <algorithm>

#include "kda/problem/stages.hpp"

namespace kda_check::test {

/// Calls body(place, sequence) for every chunk of every head, in chunks of the problem's size.
template <class Body>
void over_chunks(const kda::Problem& problem, Body body) {
  const auto C = static_cast<std::size_t>(problem.options.chunk_size);
  for (const kda::Sequence& s : problem.sequences())
    for (std::size_t begin = s.begin; begin < s.end; begin += C)
      for (std::size_t head = 0; head < problem.dimensions().HV; ++head)
        body(kda::ChunkPlace{s.batch, begin, std::min(C, s.end - begin),
                             kda::first_chunk(problem, s, C) + (begin - s.begin) / C, head},
             s);
}

}  // namespace kda_check::test

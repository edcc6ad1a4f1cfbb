// The elements of a stage of the chunk form, chunk by chunk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/interruption.hpp"
#include "kda/problem/stages.hpp"

namespace kda_check::explain {

/// Calls body(place, row, column, element) for every element of a stage that counts, chunks of all heads in
/// order of time.
class StageWalk {
 public:
  StageWalk(const kda::Problem& problem, std::size_t chunk_size)
      : problem_(problem), d_(kda::chunked_dimensions(problem, chunk_size)) {
    for (const kda::Sequence& s : problem.sequences()) {
      const std::size_t first = kda::first_chunk(problem, s, chunk_size);
      for (std::size_t begin = s.begin; begin < s.end; begin += chunk_size)
        places_.push_back(
            {s.batch, begin, std::min(chunk_size, s.end - begin), first + (begin - s.begin) / chunk_size, 0});
    }
  }

  const std::vector<kda::ChunkPlace>& chunks() const { return places_; }

  /// Stops and returns true as soon as body does. Throws Interrupted.
  template <class Body>
  bool over_chunk(kda::Stage stage, const kda::ChunkPlace& chunk, const Body& body) const {
    const kda::StageLayout layout(stage, d_, problem_.options.state_v_first);
    const bool triangular = kda::row_of(stage).lower_triangular();
    kda::ChunkPlace place = chunk;
    check_interruption();
    for (place.head = 0; place.head < d_.HV; ++place.head)
      for (std::size_t row = 0; row < layout.rows(place); ++row)
        for (std::size_t column = 0; column < (triangular ? row + 1 : layout.columns(place)); ++column)
          if (body(place, row, column, layout.element(place, row, column))) return true;
    return false;
  }

 private:
  const kda::Problem& problem_;
  const kda::Dimensions d_;
  std::vector<kda::ChunkPlace> places_;
};

}  // namespace kda_check::explain

// Who computed a recorded answer, or its gradients: the way that leaves no bit of it different, or the
// nearest (docs/explain-bits.md).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hypotheses/hypothesis.hpp"
#include "hypotheses/recorded.hpp"

namespace kda_check::explain {

/// What a way leaves of a tensor.
struct Left {
  std::string tensor;
  std::size_t differing = 0, elements = 0;
  std::optional<std::size_t> first;  ///< element that differs
};
std::size_t differing_of(const std::vector<Left>& tensors);
std::size_t elements_of(const std::vector<Left>& tensors);

struct TriedWay {
  hypotheses::Hypothesis way;
  std::vector<Left> tensors;
};

struct BitSearch {
  std::vector<TriedWay> nearest;  ///< the nearest first, on everything; the others on the first heads
  std::size_t tried = 0;          ///< ways, on parts at least
};

/// `forward`: of gradients, the ways that are nearest to o and final_state. Their launches are kept, and
/// those that leave nothing there are tried before all else. `progress` is told what is tried.
BitSearch search_bits(const hypotheses::RecordedOutput& recorded, const std::vector<TriedWay>& forward,
                      numeric::DType dtype, int threads,
                      const std::function<void(const std::string&)>& progress);

}  // namespace kda_check::explain

// Which convention explains a wrong answer, if one does. The answer is compared with what a kernel under each
// convention would answer, in fp64, on a part of the problem that contains the failure: two heads, a few V
// lanes, some hundred tokens (docs/probe.md).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "explain/probe/conventions.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::explain {

/// The answer that failed. Limits are those of rms_ratio under the right reading, above 0.
struct FailedAnswer {
  const tensor::Tensor* o = nullptr;            ///< or null
  const tensor::Tensor* final_state = nullptr;  ///< or null
  double o_limit = 0, final_state_limit = 0;
};

/// Where it failed.
struct FailurePlace {
  std::size_t sequence = 0, head = 0, lane = 0;
};

/// rms_ratio of the tensor that deviates most as given (in units of its limit), before and after.
struct Explanation {
  std::string convention, meaning;  ///< of two: both, with "and" between
  std::string tensor;
  double before = 0, after = 0;
};

struct ProbeFinding {
  std::vector<Explanation> matches;    ///< the best first; others cannot be told from it by this answer
  std::optional<Explanation> nearest;  ///< without a match, the one that comes closest, if it comes closer
  std::size_t conventions = 0;         ///< tried
  kda::Sequence sequence{};
  std::size_t begin = 0, end = 0;  ///< tokens looked at
  std::vector<std::size_t> heads;
  std::size_t first_lane = 0, lanes = 0;
};

/// A convention explains an answer when both its tensors agree with it within the limits, and four times
/// better than with the right reading. Where none does, two at once may ("exp2 and beta_twice").
ProbeFinding probe(const kda::Problem& problem, const FailedAnswer& answer, const FailurePlace& place,
                   int threads);

}  // namespace kda_check::explain

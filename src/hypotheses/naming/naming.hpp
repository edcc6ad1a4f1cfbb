// Which fault a wrong output has, if it is a known one: the output is compared with what a kernel with each
// of them would give, in fp64, on a part of the problem that contains the failure (docs/explain.md).
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "hypotheses/naming/faults.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::hypotheses {

/// The output that failed. Limits are those of rms_ratio, above 0.
struct FailedOutput {
  const tensor::Tensor* o = nullptr;            ///< or null
  const tensor::Tensor* final_state = nullptr;  ///< or null
  double o_limit = 0, final_state_limit = 0;
};

/// Where it failed.
struct FailurePlace {
  std::size_t sequence = 0, head = 0;
};

struct Cause {
  std::string fault, meaning;  ///< of two: both, with "and" between
  /// 1 - |y - y_f|^2 / |y - x|^2, the mean over tensors that err: of the squares of the error, what the fault
  /// explains.
  double explained = 0;
  std::string tensor;  ///< that errs most in units of its limit; its rms_ratio without and with the fault
  double before = 0, after = 0;
  std::string left_in = {};  ///< a tensor in which something else is wrong, too
};

struct Naming {
  std::vector<Cause> causes;     ///< the best first; others cannot be told from it by this output
  std::optional<Cause> nearest;  ///< without a cause, what explains most, if anything does
  std::size_t tried = 0;         ///< faults
  kda::Sequence sequence{};
  std::size_t begin = 0, end = 0;  ///< tokens looked at
  std::vector<std::size_t> heads;
};

struct NamingEffort {
  /// Looked at from the start of the sequence, where the output deviates that late; else from shortly before.
  std::size_t most_tokens = 1024;
  std::size_t seconds = std::numeric_limits<std::size_t>::max();  ///< tried beside the best, the best first
};

Naming name_fault(const kda::Problem& problem, const FailedOutput& output, const FailurePlace& place,
                  int threads, const NamingEffort& effort = {});

/// What a call on a pool of states left; limits as above. All are there.
struct PoolOutput {
  const tensor::Tensor *o, *final_state, *pool;  ///< of the ordinary form; the pool of the call
  double o_limit, final_state_limit;
};
/// The same of a call, by pool_faults.hpp.
Naming name_pool_fault(const kda::Problem& problem, const PoolOutput& output);

struct FailedGradient {
  std::string name;
  const tensor::Tensor* got;
  double limit;              ///< of rms_ratio, above 0
  bool by_elements = false;  ///< it is within that, and single elements are not
};
/// The same of gradients, by the faults of reference_backward.hpp, one at a time; nothing where it cannot
/// differentiate the problem, or the sequence is too long. `output`: all that are there.
Naming name_gradient_fault(const kda::Problem& problem, const std::vector<FailedGradient>& output,
                           const FailurePlace& place, std::size_t chunk_size, int threads);

}  // namespace kda_check::hypotheses

// The oracle on the GPU behind plain data (kda/truth/oracle.hpp says what it is). The bits of the CPU's.
#pragma once

#include <functional>

#include "cuda/problem/request.hpp"

namespace kda_check::cuda {

struct OracleRequest : ProblemInputs {
  std::size_t first_head = 0, last_head = 0;  ///< value heads [first, last)
  bool in_fp64 = false;
  std::size_t block_tokens = 1;  ///< parts of a sequence are multiples of this, but for the last
  int threads = 1;               ///< of the host, for copies
};

/// Tokens [begin, begin + count) of a batch row, arrays [count][last_head - first_head][V].
struct OracleTokens {
  std::size_t batch, begin, count;
  const double *hi, *lo, *magnitude;
};
/// The final state of a head of a sequence, arrays [K][V].
struct OracleFinalState {
  std::size_t sequence, head;
  const double *hi, *lo, *magnitude;
};
struct OracleSinks {
  std::function<void()> begun;  ///< no more memory is asked for, and the first step is on its way
  std::function<void(const OracleTokens&)> tokens;
  std::function<void(const OracleFinalState&)> state;
  /// In fp64, in front of what is handed out next: its values are off by at most that share of a magnitude.
  std::function<void(double)> error;
};

/// Why the oracle cannot run here for this shape; empty when it can.
std::string unsupported_oracle(const kda::Dimensions& dimensions);

/// Sequence after sequence: its tokens in their order, then its states, head by head. The sinks are called
/// from this thread, while the device goes on; the arrays are valid during the call. One run at a time:
/// others wait. Throws Error{environment} when the device fails or lacks memory.
void run_oracle(const OracleRequest& request, const OracleSinks& sinks);

}  // namespace kda_check::cuda

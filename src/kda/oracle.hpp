// The truth: the token-by-token recurrence in double-double (about 106 bits), from the inputs exactly as
// stored, with the magnitude of every output element (the sum of the absolute values of the terms that made
// it; formulas in kernels/oracle.hpp). Norms, gates and sigmoids are evaluated in double-double too, without
// the usual thresholds.
//
// Checked against MPFR at 200 bits (tests/kda/oracle): error <= 1e-28 x magnitude.
//
// The answer is handed out block by block while the recurrence runs: held whole it would be twelve times the
// size of a bf16 tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "kda/problem.hpp"

namespace kda_check::kda {

enum class OraclePrecision : std::uint8_t {
  double_double,
  fp64,  ///< the fused fp64 recurrence from double-double inputs, for problems too large for the other
};

/// Value heads [first, last) of a problem, as far as it has them.
struct HeadRange {
  std::size_t first = 0, last = std::numeric_limits<std::size_t>::max();
};

/// Tokens [begin, begin + count) of a batch row; arrays are [count][heads][V], values hi + lo.
struct OracleOutput {
  std::size_t batch, begin, count;
  const double *hi, *lo, *magnitude;
  HeadRange heads;  ///< those that were asked for
};

/// The final state of one head, counted in the problem, of one sequence; arrays are [K][V], or [V][K] with
/// state_v_first.
struct OracleState {
  std::size_t sequence, head;
  const double *hi, *lo, *magnitude;
};

struct OracleSink {
  std::function<void(const OracleOutput&)> output;
  std::function<void(const OracleState&)> state;
};

/// Runs the oracle. Blocks of a sequence come in order; the sinks are called from this thread. The arrays are
/// valid during the call only. Values may be infinite or NaN where the recurrence overflows fp64. Those of a
/// head do not depend on which others are asked for.
void run_oracle(const Problem& problem, OraclePrecision precision, int threads, const OracleSink& sink,
                const HeadRange& heads = {});

}  // namespace kda_check::kda

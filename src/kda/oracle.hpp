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

#include "kda/problem.hpp"

namespace kda_check::kda {

enum class OraclePrecision : std::uint8_t {
  double_double,
  fp64,  ///< the fused fp64 recurrence from double-double inputs, for problems too large for the other
};

/// Tokens [begin, begin + count) of a batch row; arrays are [count][HV][V], values hi + lo.
struct OracleOutput {
  std::size_t batch, begin, count;
  const double *hi, *lo, *magnitude;
};

/// The final state of one head of one sequence; arrays are [K][V], or [V][K] with state_v_first.
struct OracleState {
  std::size_t sequence, head;
  const double *hi, *lo, *magnitude;
};

struct OracleSink {
  std::function<void(const OracleOutput&)> output;
  std::function<void(const OracleState&)> state;
};

/// Runs the oracle. Blocks of a sequence come in order; the sinks are called from this thread. The arrays are
/// valid during the call only. Values may be infinite or NaN where the recurrence overflows fp64.
void run_oracle(const Problem& problem, OraclePrecision precision, int threads, const OracleSink& sink);

}  // namespace kda_check::kda

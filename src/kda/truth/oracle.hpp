// The truth: the token-by-token recurrence in double-double (about 106 bits), from the inputs exactly as
// stored, with the magnitude of every output element (the sum of the absolute values of the terms that made
// it; formulas in kernels/truth/oracle_step.hpp). Norms, gates and sigmoids are evaluated in double-double
// too, without the usual thresholds.
//
// Or, three times as fast, the recurrence in fp64 with a bound of its error (ColumnError there). No bound is
// known with erase gates.
//
// Checked against MPFR at 200 bits (tests/kda/oracle): error <= 1e-28 x magnitude.
//
// The answer is handed out block by block while the recurrence runs: held whole it would be twelve times the
// size of a bf16 tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

enum class OraclePrecision : std::uint8_t {
  double_double,
  fp64,  ///< the fused recurrence in fp64, from inputs in double-double
};

enum class OracleDevice : std::uint8_t { cpu, gpu };

/// How the oracle runs. The device changes no bit.
struct OracleOptions {
  OracleOptions(OraclePrecision the_precision, OracleDevice the_device = OracleDevice::cpu)
      : precision(the_precision), device(the_device) {}
  OraclePrecision precision;
  OracleDevice device;
  /// In fp64: WideTruth is thrown as soon as the bound of an error is a larger share of a magnitude.
  double most_error = std::numeric_limits<double>::infinity();
  /// Where a GPU fails or lacks memory before anything was handed out: told why, and the CPU does it. Empty:
  /// the failure is thrown.
  std::function<void(const std::string& reason)> instead = {};
};

/// Why the oracle of such a problem cannot run on the GPU; empty when it can.
std::string gpu_oracle_unavailable(const Dimensions& dimensions);

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

/// Row `row` of a tensor of states, final_state or checkpoints: that of one head, counted in the problem.
/// Arrays are [K][V], or [V][K] with state_v_first.
struct OracleState {
  std::string_view tensor;
  std::size_t row, head;
  const double *hi, *lo, *magnitude;
};

struct OracleSink {
  /// Called first, where a GPU has given it what memory it takes and has begun. On the CPU, at once.
  std::function<void()> begun = {};
  std::function<void(const OracleOutput&)> output;
  std::function<void(const OracleState&)> state;
  /// Called last, in fp64: no value is further from the exact one than this share of its magnitude.
  std::function<void(double)> error = {};
};

/// Thrown where the recurrence in fp64 is not as exact as was asked.
struct WideTruth {};

/// Runs the oracle. Blocks of a sequence come in order, and its final states behind them; the sinks are
/// called from this thread. The arrays are valid during the call only. Values may be infinite or NaN where
/// the recurrence overflows fp64; which NaN depends on the processor. Those of a head do not depend on which
/// others are asked for, nor does anything on the device. Throws Error{environment} when a GPU fails or lacks
/// memory, WideTruth as the options say.
void run_oracle(const Problem& problem, const OracleOptions& options, int threads, const OracleSink& sink,
                const HeadRange& heads = {});

}  // namespace kda_check::kda

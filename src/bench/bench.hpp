// `bench`: how fast the variants and the oracle are, beside what this machine's multiply-add units can do,
// measured in the same run: speeds drift on shared machines, their ratio hardly does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kda/variants/variants.hpp"
#include "plan/request.hpp"
#include "report/document.hpp"

namespace kda_check::bench {

struct BenchRequest {
  plan::Request words;                                   ///< variants, dtypes (fp32), arithmetic, --backward
  bool with_oracle = true;                               ///< the oracle is a contestant
  std::size_t B = 1, T = 1024, H = 0, K = 128, V = 128;  ///< H = 0: as many heads as threads, at least 4
  std::size_t sequences = 1;                             ///< packed, of about T / sequences tokens
  std::size_t decode =
      0;               ///< sequences of one token each, with states in a pool, in place of B and T; 0: none
  bool layer = false;  ///< norms, sigmoid and a bounded gate are the kernel's, states V first
  std::size_t chunk_size = 64;
  plan::Names against = {};  ///< kernels of others (bench/rivals.hpp)
  int configs = 0;           ///< launch configurations that each of their kernels may try; 0: all
  int repeats = 7;
  int threads = 1;
  std::size_t memory_budget = 0;
  std::function<void(const std::string&)> warning = {}, progress = {};
};

/// One row for each contestant; beside kernels of others with the error of each answer. Throws Error{usage}
/// for what no variant has, Error{input} for a problem that does not fit the memory budget,
/// Error{environment} for a variant named in the request that cannot run here.
report::Document bench(const BenchRequest& request);

/// A problem with unit keys and queries, values of unit variance, gates around -0.1: nothing overflows,
/// nothing is zero. Of a layer: what its projections give, with the gate bounded by -5. A step of decoding is
/// a call on a pool with a quarter more slots than sequences, which are in no order.
kda::Problem bench_problem(const BenchRequest& request, numeric::DType dtype, bool with_loss);

/// Throws Error{usage} for packed sequences and steps of decoding that there are not.
void check_sequences(const BenchRequest& request);

/// Bytes that must cross the device's memory: every input read once, o and final_state written once.
std::size_t least_traffic(const kda::Problem& problem, numeric::DType dtype);

}  // namespace kda_check::bench

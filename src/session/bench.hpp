// `bench`: how fast the variants and the oracle are, beside what this machine's multiply-add units can do,
// measured in the same run: speeds drift on shared machines, their ratio hardly does.
#pragma once

#include <string>
#include <vector>

#include "kda/variants.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

struct BenchRequest {
  std::vector<std::string> variants;  ///< names, "oracle"; empty: all, and the oracle
  std::vector<std::string> dtypes;    ///< empty: fp32
  std::vector<std::string> arithmetic;
  std::size_t B = 1, T = 1024, H = 0, K = 128, V = 128;  ///< H = 0: as many heads as threads, at least 4
  std::size_t chunk_size = 64;
  int repeats = 7;
  int threads = 1;
};

struct BenchRow {
  std::string variant, dtype, arithmetic;
  double microseconds = 0;  ///< per token and head: wall time / (B T H), median of the repeats
  double gflops = 0;        ///< of the recurrence's 7 K V flops per token and head
  double of_peak = 0;       ///< gflops / the FMA peak of the same repeat, median; 0 where it means nothing
  double of_recurrent =
      0;  ///< time / the time of `recurrent` in the same dtype and repeat, median; 0 without it
};

struct BenchResult {
  std::string instruction_set, shape;
  int threads = 1, repeats = 1;
  double peak_fp32 = 0, peak_fp64 = 0;  ///< Gflop/s, two flops per fused multiply-add, all threads together
  std::vector<BenchRow> rows;
};

BenchResult bench(const BenchRequest& request, const Log& log);

/// A problem with unit keys and queries, normal values, gates around -0.1: nothing overflows, nothing is
/// zero.
kda::Problem bench_problem(const BenchRequest& request, numeric::DType dtype);

}  // namespace kda_check::session

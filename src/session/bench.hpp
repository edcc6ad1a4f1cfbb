// `bench`: how fast the variants and the oracle are, beside what this machine's multiply-add units can do,
// measured in the same run: speeds drift on shared machines, their ratio hardly does.
#pragma once

#include <string>
#include <vector>

#include "kda/variants.hpp"
#include "session/fma_peak.hpp"
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
  bool backward = false;  ///< time the backward passes too
};

struct BenchRow {
  std::string variant, dtype, arithmetic;
  std::string pass = "forward";  ///< or "backward"
  std::string device;            ///< "cpu", or the name of the device
  double microseconds = 0;       ///< per token and head: time / (B T H), median of the repeats
  double gflops = 0;             ///< of the recurrence's 7 K V flops per token and head; backwards 20 K V
  double of_peak = 0;  ///< gflops / the FMA peak of the same repeat, median; 0 where it means nothing
  double of_recurrent =
      0;  ///< time / the time of `recurrent` forwards in the same dtype and repeat, median; 0 without it

  // Where the device has a clock of its own; else 0.
  double milliseconds = 0;        ///< of one run, median
  double spread = 0;              ///< slowest minus fastest run, in parts of the median
  double floor_milliseconds = 0;  ///< least_traffic at the speed of a copy: what no kernel can beat

  double over_floor() const { return floor_milliseconds > 0 ? milliseconds / floor_milliseconds : 0; }
};

struct BenchResult {
  std::string instruction_set, shape;
  int threads = 1, repeats = 1;
  FmaPeak peak;               ///< zeros when nothing ran on the CPU
  double copy_bandwidth = 0;  ///< bytes per second, read plus written, in the device's memory; 0 without one
  std::vector<BenchRow> rows;
};

/// Throws Error{usage} for names that do not exist and for what no variant has, Error{environment} for a
/// variant named in the request that cannot run here.
BenchResult bench(const BenchRequest& request, const Log& log);

/// A problem with unit keys and queries, normal values, gates around -0.1: nothing overflows, nothing is
/// zero.
kda::Problem bench_problem(const BenchRequest& request, numeric::DType dtype);

/// Bytes that must cross the device's memory: every input read once, o and final_state written once.
std::size_t least_traffic(const kda::Problem& problem, numeric::DType dtype);

/// The table; columns that say nothing of any row are left out.
std::string bench_text(const BenchResult& result);
/// docs/json.md
std::string bench_json(const BenchResult& result);

}  // namespace kda_check::session

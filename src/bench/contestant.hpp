// One thing to be timed, and the row it becomes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kda/problem/passes.hpp"
#include "kda/problem/problem.hpp"
#include "kda/variants/decoding.hpp"

namespace kda_check::bench {

struct BenchRow {
  std::string variant, dtype, arithmetic;
  kda::Pass pass = kda::Pass::forward;
  std::string device;       ///< "cpu", or the name of the device
  double microseconds = 0;  ///< per token and head: time / (B T H), median of the repeats
  double gflops = 0;        ///< of the recurrence's 7 K V flops per token and head; backwards 20 K V
  double of_peak = 0;       ///< gflops / the FMA peak of the same repeat, median; 0 where it means nothing
  double of_recurrent =
      0;  ///< time / that of `recurrent` forwards in the same dtype and repeat, median; 0 without it

  // Where the device has a clock of its own; else 0.
  double milliseconds = 0;  ///< of one run, median
  double spread = 0;        ///< slowest minus fastest run, in parts of the median
  double launched_milliseconds =
      0;  ///< of steps of decoding launched one by one, where `milliseconds` is of a graph
  double floor_milliseconds = 0;  ///< least_traffic at the speed of a copy: what no kernel can beat

  // rms_ratio to the truth, where it was asked for; else below 0.
  double output_error = -1, state_error = -1;

  double over_floor() const { return floor_milliseconds > 0 ? milliseconds / floor_milliseconds : 0; }
};

/// Timed by a clock around `run`, or by the clock of its device.
struct Contestant {
  BenchRow row;
  numeric::DType dtype = numeric::DType::fp32;
  const kda::Problem* problem = nullptr;
  std::function<void()> run;
  std::function<std::vector<double>(int repeats)> time;  ///< seconds; empty: by the clock here
  /// Of steps of decoding in place, in place of `time`; empty: of something else.
  std::function<kda::StepSeconds(int repeats)> time_steps;
  /// o and final_state, as far as they are there; empty: no answer to be measured.
  std::function<std::shared_ptr<const kda::Tensors>()> answer;
  bool is_shown = true;  ///< else it is timed as the measure of others
  std::vector<double> times = {}, shares = {},
                      ratios = {};  ///< seconds of a run; of the peak; over recurrent

  bool on_device() const { return time || time_steps; }
};

}  // namespace kda_check::bench

#include "session/bench.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/gradient_oracle.hpp"
#include "kda/kernels/table.hpp"
#include "kda/oracle.hpp"
#include "session/describe.hpp"
#include "session/selection.hpp"
#include "session/stopwatch.hpp"

namespace kda_check::session {

namespace {

using numeric::DType;

/// What is timed, checked before anything is.
struct Plan {
  std::vector<const kda::Variant*> variants;
  std::vector<DType> dtypes;
  bool with_oracle = false;
};

/// From now on blocks below 32 MiB that were freed stay with the process: a repeat measures a variant, and
/// not how fast the system hands out pages again.
void keep_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most there is
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

/// One thing to be timed: by a clock around `run`, or by the clock of its device.
struct Contestant {
  BenchRow row;
  DType dtype = DType::fp32;
  const kda::Problem* problem = nullptr;
  std::function<void()> run;
  std::function<std::vector<double>(int repeats)> time;  ///< seconds; empty: by the clock here
  std::vector<double> times = {}, shares = {},
                      ratios = {};  ///< seconds of a run; of the peak; over recurrent

  bool on_device() const { return static_cast<bool>(time); }
};

const kda::Variant& contestant_named(const std::string& name) {
  std::vector<std::string> names{"oracle"};
  for (const kda::Variant& variant : kda::variants()) names.emplace_back(variant.name);
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw Error(ErrorKind::usage, fmt::format("no variant '{}'", name), {}, suggest(name, names));
  const kda::Variant& variant = kda::variant_named(name);
  if (const std::string reason = variant.unavailable(); !reason.empty())
    throw Error(ErrorKind::environment, fmt::format("{}: {}", name, reason), {},
                "kda-check list says what can run here");
  return variant;
}

Plan planned(const BenchRequest& request) {
  Plan plan;
  for (const std::string& name : without_repeats(request.dtypes)) {
    const auto dtype = numeric::dtype_named(name);
    if (!dtype)
      throw Error(ErrorKind::usage, fmt::format("no dtype '{}'", name), {}, "fp64, fp32, bf16, fp16");
    plan.dtypes.push_back(*dtype);
  }
  if (plan.dtypes.empty()) plan.dtypes = {DType::fp32};
  for (const std::string& name : without_repeats(request.variants)) {
    if (name == "oracle") {
      plan.with_oracle = true;
    } else {
      plan.variants.push_back(&contestant_named(name));
    }
  }
  if (request.variants.empty()) {
    plan.variants = selected_variants({});
    plan.with_oracle = true;
  }
  check_arithmetic(request.arithmetic, plan.variants);
  return plan;
}

Contestant contestant(const kda::Variant& variant, const kda::Problem& problem,
                      const kda::RunOptions& options) {
  Contestant result;
  result.row.variant = variant.name;
  result.row.dtype = numeric::name_of(options.dtype);
  result.row.arithmetic = kda::describe(options.arithmetic, variant.axes);
  result.row.device = kda::device_of(variant);
  result.dtype = options.dtype;
  result.problem = &problem;
  result.run = [&variant, options, &problem] { variant.run(problem, options); };
  if (variant.time != nullptr)
    result.time = [&variant, options, &problem](int repeats) {
      return variant.time(problem, options, repeats);
    };
  return result;
}

Contestant backward_contestant(const kda::Variant& variant, const kda::Problem& problem,
                               const kda::RunOptions& options) {
  Contestant result = contestant(variant, problem, options);
  result.row.pass = "backward";
  result.run = [&variant, options, &problem] { variant.run_backward(problem, options); };
  result.time = nullptr;
  return result;
}

Contestant oracle(const kda::Problem& problem, DType dtype, int threads) {
  Contestant result;
  result.row.variant = "oracle";
  result.row.dtype = "dd";
  result.row.arithmetic = "double-double, with magnitudes";
  result.row.device = "cpu";
  result.dtype = dtype;
  result.problem = &problem;
  result.run = [&problem, threads] {
    kda::run_oracle(problem, kda::OraclePrecision::double_double, threads, {});
  };
  return result;
}

/// `problems` outlive the contestants.
std::vector<Contestant> contestants(const Plan& plan, const BenchRequest& request,
                                    const std::map<DType, kda::Problem>& problems, const Log& log) {
  std::vector<Contestant> list;
  std::string unsupported;
  for (const DType dtype : plan.dtypes) {
    const kda::Problem& problem = problems.at(dtype);
    for (const kda::Variant* const variant : plan.variants) {
      kda::RunOptions options =
          run_options(*variant, problem, dtype, request.arithmetic, request.chunk_size, request.threads);
      options.memory_limit = fixture::ReadLimits::default_memory_budget();
      std::string reason = variant->unsupported(problem, options);
      if (reason.empty()) {
        list.push_back(contestant(*variant, problem, options));
        if (request.backward && variant->run_backward != nullptr)
          list.push_back(backward_contestant(*variant, problem, options));
        continue;
      }
      if (log.warning) log.warning(fmt::format("{} {}: {}", variant->name, numeric::name_of(dtype), reason));
      unsupported = std::move(reason);
    }
  }
  if (list.empty() && !unsupported.empty()) throw Error(ErrorKind::usage, "bench: " + unsupported);
  if (!plan.with_oracle) return list;
  const kda::Problem& problem = problems.at(plan.dtypes.front());
  list.push_back(oracle(problem, plan.dtypes.front(), request.threads));
  if (request.backward) {
    list.push_back(list.back());
    list.back().row.pass = "backward";
    list.back().run = [&problem, chunk = request.chunk_size, threads = request.threads] {
      kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, chunk, threads);
    };
  }
  return list;
}

/// Floating-point operations of the recurrence: a product and three multiply-adds for each element of the
/// state; backwards, replayed, two products and nine multiply-adds.
double flops(const kda::Problem& problem, const BenchRow& row) {
  const kda::Dimensions& d = problem.dimensions();
  return (row.pass == "backward" ? 20.0 : 7.0) * static_cast<double>(d.B * d.T * d.HV * d.K * d.V);
}

/// All contestants in turn, again and again, between measurements of the peak.
void race(std::vector<Contestant*> runners, const BenchRequest& request, const Log& log,
          BenchResult& result) {
  std::vector<double> peaks_fp32, peaks_fp64;
  for (Contestant* const runner : runners) runner->run();  // warm-up
  for (int repeat = 0; repeat < request.repeats && !runners.empty(); ++repeat) {
    if (log.progress) log.progress(fmt::format("repeat {} of {}", repeat + 1, request.repeats));
    // Before and after, and the faster counts: whatever else the machine does slows the burst as well.
    const FmaPeak before = measured_fma_peak(request.threads);
    std::map<DType, double> recurrent;
    for (Contestant* const runner : runners) {
      runner->times.push_back(seconds(runner->run));
      if (runner->row.variant == "recurrent" && runner->row.pass == "forward")
        recurrent[runner->dtype] = runner->times.back();
    }
    const FmaPeak after = measured_fma_peak(request.threads);
    peaks_fp32.push_back(std::max(before.fp32, after.fp32));
    peaks_fp64.push_back(std::max(before.fp64, after.fp64));
    for (Contestant* const runner : runners) {
      const double time = runner->times.back();
      const double peak = runner->dtype == DType::fp64 ? peaks_fp64.back() : peaks_fp32.back();
      if (runner->row.variant != "oracle")
        runner->shares.push_back(flops(*runner->problem, runner->row) / time * 1e-9 / peak);
      if (recurrent.count(runner->dtype) > 0) runner->ratios.push_back(time / recurrent[runner->dtype]);
    }
  }
  result.peak = {median(peaks_fp32), median(peaks_fp64)};
}

/// Contestants with a clock of their own, between measurements of the speed of memory; the faster counts.
void time_on_devices(std::vector<Contestant*> runners, int repeats, const Log& log, BenchResult& result) {
  if (runners.empty()) return;
  const double before = kda::gpu_copy_bandwidth();
  for (Contestant* const runner : runners) {
    if (log.progress) log.progress(fmt::format("{} {}", runner->row.variant, runner->row.dtype));
    runner->times = runner->time(repeats);
  }
  result.copy_bandwidth = std::max(before, kda::gpu_copy_bandwidth());
  for (Contestant* const runner : runners) {
    BenchRow& row = runner->row;
    const auto [fastest, slowest] = std::minmax_element(runner->times.begin(), runner->times.end());
    row.milliseconds = median(runner->times) * 1e3;
    row.spread = (*slowest - *fastest) * 1e3 / row.milliseconds;
    row.floor_milliseconds =
        static_cast<double>(least_traffic(*runner->problem, runner->dtype)) / result.copy_bandwidth * 1e3;
  }
}

BenchRow finished(const Contestant& contestant) {
  BenchRow row = contestant.row;
  const kda::Dimensions& d = contestant.problem->dimensions();
  const double time = median(contestant.times);
  row.microseconds = time * 1e6 / static_cast<double>(d.B * d.T * d.HV);
  row.gflops = flops(*contestant.problem, row) / time * 1e-9;
  row.of_peak = median(contestant.shares);
  row.of_recurrent = median(contestant.ratios);
  return row;
}

}  // namespace

std::size_t least_traffic(const kda::Problem& problem, numeric::DType dtype) {
  std::size_t bytes = 0;
  for (const tensor::Tensor* const tensor : {&problem.q, &problem.k, &problem.v, &problem.g, &problem.beta})
    bytes += tensor->bytes();
  for (const auto* const tensor : {&problem.A_log, &problem.dt_bias, &problem.initial_state})
    if (*tensor) bytes += (*tensor)->bytes();
  const auto result_bytes = [&](std::string_view name, DType stored) {
    const tensor::Shape shape =
        kda::expected_shape(*kda::find_spec(name), problem.dimensions(), problem.options.state_v_first);
    return tensor::element_count(shape) * numeric::format_of(stored).bytes;
  };
  return bytes + result_bytes("o", dtype) + result_bytes("final_state", kda::state_dtype(dtype));
}

BenchResult bench(const BenchRequest& wanted, const Log& log) {
  BenchRequest request = wanted;
  if (request.H == 0) request.H = static_cast<std::size_t>(std::max(4, request.threads));
  const Plan plan = planned(request);
  std::map<DType, kda::Problem> problems;
  for (const DType dtype : plan.dtypes) problems.emplace(dtype, bench_problem(request, dtype));
  std::vector<Contestant> list = contestants(plan, request, problems, log);
  std::vector<Contestant*> here, on_devices;
  for (Contestant& item : list) (item.on_device() ? on_devices : here).push_back(&item);

  keep_memory();
  BenchResult result;
  result.instruction_set = kda::kernel_table().instruction_set;
  result.threads = request.threads;
  result.repeats = request.repeats;
  result.shape = shape_text(problems.at(plan.dtypes.front()).dimensions());
  race(here, request, log, result);
  time_on_devices(on_devices, request.repeats, log, result);
  for (const Contestant& item : list) result.rows.push_back(finished(item));
  return result;
}

}  // namespace kda_check::session

#include "bench/bench.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/memory.hpp"
#include "base/names.hpp"
#include "bench/accuracy.hpp"
#include "bench/contestant.hpp"
#include "bench/fma_peak.hpp"
#include "bench/rivals.hpp"
#include "bench/stopwatch.hpp"
#include "kda/gpu/device.hpp"
#include "kda/kernels/table.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/oracle.hpp"
#include "numeric/dtype_words.hpp"
#include "plan/selection.hpp"
#include "plan/source.hpp"

namespace kda_check::bench {

namespace {

using numeric::DType;
using report::Show;
using report::Value;

struct Speeds {
  FmaPeak peak;               ///< zeros when nothing ran on the CPU
  double copy_bandwidth = 0;  ///< bytes per second, read plus written, in the device's memory; 0 without one
};

/// From now on most of what was freed stays with the process: a repeat measures a variant, and not how fast
/// the system hands out pages again.
void keep_memory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

Contestant contestant(const kda::Variant& variant, const kda::Problem& problem,
                      const kda::RunOptions& options, kda::Pass pass) {
  Contestant result;
  result.row.variant = variant.name;
  result.row.pass = pass;
  result.row.dtype = numeric::name_of(options.dtype);
  result.row.arithmetic = kda::describe(options.arithmetic, variant.axes);
  result.row.device = kda::device_of(variant);
  result.dtype = options.dtype;
  result.problem = &problem;
  const auto run = [&variant, options, &problem, pass] {
    return kda::run_pass(pass, variant, problem, options);
  };
  result.run = [run] { run(); };
  const bool backward = pass == kda::Pass::backward;
  if (const auto time = backward ? variant.time_backward : variant.time)
    result.time = [time, options, &problem](int repeats) { return time(problem, options, repeats); };
  if (backward) return result;
  result.answer = [run] { return std::make_shared<kda::Tensors>(run()); };
  if (variant.name == "gpu-recurrent" && kda::decodes_in_place(problem, options))
    result.time_steps = [options, &problem](int repeats) {
      return kda::time_decoding(problem, options, repeats);
    };
  return result;
}

/// On the CPU unless another device was asked for.
Contestant oracle(const kda::Problem& problem, DType dtype, const BenchRequest& request, kda::Pass pass,
                  kda::OraclePrecision precision) {
  plan::Request words = request.words;
  if (!words.oracle_device) words.oracle_device = plan::OracleDeviceChoice::cpu;
  const kda::OracleDevice device = words.oracle_device_for(problem.dimensions(), pass);
  const bool on_gpu = device == kda::OracleDevice::gpu;
  if (words.oracle_device == plan::OracleDeviceChoice::gpu && !on_gpu)
    throw Error(ErrorKind::environment, "oracle: " + plan::why_no_gpu_oracle(problem.dimensions(), pass), {},
                "kda-check list says what can run here");
  Contestant result;
  result.row.variant = "oracle";
  const bool in_fp64 = precision == kda::OraclePrecision::fp64;
  result.row.dtype = in_fp64 ? "fp64" : "dd";
  result.row.arithmetic =
      in_fp64 ? "with magnitudes, and a bound of its error" : "double-double, with magnitudes";
  result.row.device = on_gpu ? kda::gpu_device_name() : "cpu";
  result.dtype = dtype;
  result.problem = &problem;
  result.row.pass = pass;
  const kda::OracleOptions options{precision, device};
  if (pass == kda::Pass::backward)
    result.run = [&problem, options, chunk = request.chunk_size, threads = request.threads] {
      kda::run_gradient_oracle(problem, options, chunk, threads);
    };
  else
    result.run = [&problem, options, threads = request.threads] {
      kda::run_oracle(problem, options, threads, {});
    };
  return result;
}

/// Those that cannot run here are left out with a warning. Throws Error{environment} where none can.
void add_rivals(std::vector<Contestant>& list, const BenchRequest& request,
                const std::map<DType, kda::Problem>& problems) {
  std::string reason;
  const std::size_t ours = list.size();
  for (const auto& [dtype, problem] : problems)
    for (const std::string& name : request.against) {
      if (request.progress) request.progress(fmt::format("{} {}", name, numeric::name_of(dtype)));
      try {
        list.push_back(rival(name, problem, dtype, request));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::environment) throw;
        reason = error.what();
        if (request.warning) request.warning(reason);
      }
    }
  if (list.size() == ours && !reason.empty())
    throw Error(ErrorKind::environment, "bench --against: " + reason);
}

/// `problems` outlive the contestants.
std::vector<Contestant> contestants(const BenchRequest& request,
                                    const std::map<DType, kda::Problem>& problems) {
  const bool backward = request.words.selection.pass == kda::Pass::backward;
  std::vector<Contestant> list;
  std::string unsupported;
  for (const auto& [dtype, problem] : problems)
    for (const plan::Answer& answer : plan::computed_answers(request.words, problem, {dtype})) {
      const kda::Variant& variant = *answer.variant;
      if (const std::string reason = variant.unavailable(); !reason.empty())
        throw Error(ErrorKind::environment, fmt::format("{}: {}", variant.name, reason), {},
                    "kda-check list says what can run here");
      kda::RunOptions options = answer.options;
      options.threads = request.threads;
      options.memory_limit = request.memory_budget;
      std::string reason = answer.why_not;
      if (reason.empty() && backward)
        reason = plan::why_no_pass(kda::Pass::backward, variant, options.arithmetic, problem.dimensions());
      if (!reason.empty()) {
        if (request.warning)
          request.warning(fmt::format("{} {}: {}", variant.name, numeric::name_of(dtype), reason));
        unsupported = std::move(reason);
        continue;
      }
      if (!backward || variant.name == "recurrent") {
        list.push_back(contestant(variant, problem, options, kda::Pass::forward));
        list.back().is_shown = !backward;
        if (problem.pool && list.back().time && !list.back().time_steps && request.warning)
          request.warning(fmt::format("{} {}: no kernel in place; timed as one call in its ordinary form",
                                      variant.name, numeric::name_of(dtype)));
      }
      if (backward) list.push_back(contestant(variant, problem, options, kda::Pass::backward));
    }
  if (list.empty() && !unsupported.empty()) throw Error(ErrorKind::usage, "bench: " + unsupported);
  add_rivals(list, request, problems);
  if (!request.with_oracle) return list;
  const auto& [dtype, problem] = *problems.begin();
  const kda::Pass pass = backward ? kda::Pass::backward : kda::Pass::forward;
  list.push_back(oracle(problem, dtype, request, pass, kda::OraclePrecision::double_double));
  if (!backward) list.push_back(oracle(problem, dtype, request, pass, kda::OraclePrecision::fp64));
  return list;
}

/// Floating-point operations of the recurrence: a product and three multiply-adds for each element of the
/// state; backwards, replayed, two products and nine multiply-adds.
double flops(const kda::Problem& problem, const BenchRow& row) {
  const kda::Dimensions& d = problem.dimensions();
  return (row.pass == kda::Pass::backward ? 20.0 : 7.0) * static_cast<double>(d.B * d.T * d.HV * d.K * d.V);
}

/// All contestants in turn, again and again, between measurements of the peak.
void race(std::vector<Contestant*> runners, const BenchRequest& request, Speeds& result) {
  std::vector<double> peaks_fp32, peaks_fp64;
  for (Contestant* const runner : runners) runner->run();  // warm-up
  for (int repeat = 0; repeat < request.repeats && !runners.empty(); ++repeat) {
    check_interruption();
    if (request.progress) request.progress(fmt::format("repeat {} of {}", repeat + 1, request.repeats));
    // Before and after, and the faster counts: whatever else the machine does slows the burst as well.
    const FmaPeak before = measured_fma_peak(request.threads);
    std::map<DType, double> recurrent;
    for (Contestant* const runner : runners) {
      runner->times.push_back(seconds(runner->run));
      if (runner->row.variant == "recurrent" && runner->row.pass == kda::Pass::forward)
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

/// 0 where no GPU is to be used: a rival may be timed by one that this build knows nothing of.
double copy_bandwidth() { return kda::gpu_unavailable().empty() ? kda::gpu_copy_bandwidth() : 0; }

/// Contestants with a clock of their own, between measurements of the speed of memory; the faster counts.
void time_on_devices(std::vector<Contestant*> runners, const BenchRequest& request, Speeds& result) {
  if (runners.empty()) return;
  const double before = copy_bandwidth();
  for (Contestant* const runner : runners) {
    if (request.progress) request.progress(fmt::format("{} {}", runner->row.variant, runner->row.dtype));
    if (!runner->time_steps) {
      runner->times = runner->time(request.repeats);
      continue;
    }
    kda::StepSeconds steps = runner->time_steps(request.repeats);
    runner->times = std::move(steps.graph);
    runner->row.launched_milliseconds = median(steps.launches) * 1e3;
  }
  result.copy_bandwidth = std::max(before, copy_bandwidth());
  for (Contestant* const runner : runners) {
    BenchRow& row = runner->row;
    const auto [fastest, slowest] = std::minmax_element(runner->times.begin(), runner->times.end());
    row.milliseconds = median(runner->times) * 1e3;
    row.spread = (*slowest - *fastest) * 1e3 / row.milliseconds;
    if (result.copy_bandwidth > 0)
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

report::Section rows_section() {
  report::Section section;
  section.key = "rows";
  section.tabular = true;
  section.columns = {{"variant", {}},
                     {"pass", {}},
                     {"dtype", {}},
                     {"us_per_token_and_head", "us", Show::figure},
                     {"gflops", "Gflop/s", Show::figure},
                     {"of_peak", "of peak", Show::share},
                     {"of_recurrent", "x recurrent", Show::figure},
                     {"ms", {}, Show::figure},
                     {"spread", {}, Show::share},
                     {"launched_ms", "ms launch by launch", Show::figure},
                     {"floor_ms", "floor ms", Show::figure},
                     {"over_floor", "x floor", Show::figure},
                     {"error_o", "error of o", Show::figure},
                     {"error_final_state", "of final_state", Show::figure},
                     {"device", {}, Show::data},
                     {"arithmetic", {}}};
  return section;
}

void add(report::Section& section, const BenchRow& row) {
  const auto figure = [](double value) { return value > 0 ? Value(value) : Value(); };
  const auto error = [](double value) { return value >= 0 ? Value(value) : Value(); };
  section.add({row.variant, std::string(kda::name_of(row.pass)), row.dtype, figure(row.microseconds),
               figure(row.gflops), figure(row.of_peak), figure(row.of_recurrent), figure(row.milliseconds),
               figure(row.spread), figure(row.launched_milliseconds), figure(row.floor_milliseconds),
               figure(row.over_floor()), error(row.output_error), error(row.state_error), row.device,
               row.arithmetic});
}

/// Columns that say nothing of any row are data alone.
void hide_empty_columns(report::Section& section) {
  for (std::size_t i = 0; i < section.columns.size(); ++i)
    if (std::ranges::all_of(section.entries, [&](const report::Entry& entry) {
          return std::holds_alternative<std::monostate>(entry.values[i]);
        }))
      section.columns[i].show = Show::data;
}

report::Section machine_section(const BenchRequest& request, const kda::Problem& problem,
                                const Speeds& speeds, const std::string& device) {
  report::Section section;
  section.key = "machine";
  section.columns = {{"shape", {}},
                     {"threads", {}, Show::count},
                     {"repeats", {}, Show::count},
                     {"instruction_set", {}},
                     {"fma_peak_gflops_fp32", {}, Show::figure},
                     {"fma_peak_gflops_fp64", {}, Show::figure},
                     {"copy_gb_per_s", {}, Show::figure}};
  const std::string shape = plan::shape_text(problem.dimensions()), isa = kda::kernel_table().instruction_set;
  report::Entry& machine = section.add(
      {shape, std::int64_t{request.threads}, std::int64_t{request.repeats}, isa, speeds.peak.fp32,
       speeds.peak.fp64, speeds.copy_bandwidth > 0 ? Value(speeds.copy_bandwidth * 1e-9) : Value()});
  machine.title = fmt::format("{}  {} threads  kernels for {}", shape, request.threads, isa);
  if (speeds.peak.fp32 > 0)
    section.notes.push_back(
        fmt::format("FMA peak: {:.1f} Gflop/s in fp32, {:.1f} in fp64", speeds.peak.fp32, speeds.peak.fp64));
  if (speeds.copy_bandwidth > 0)
    section.notes.push_back(
        fmt::format("{}: a copy moves {:.0f} GB/s, read and written", device, speeds.copy_bandwidth * 1e-9));
  return section;
}

/// What the problems take, before they are made.
void check_memory(const BenchRequest& request, std::size_t dtypes) {
  const double per_token = static_cast<double>(request.H * (3 * request.K + 2 * request.V + 1));
  const double of_tokens = static_cast<double>(request.B * request.T) * per_token;
  const double of_states = static_cast<double>(std::max({request.B, request.sequences, 4 * request.decode}) *
                                               request.H * request.K * request.V);
  const double bytes = 8.0 * (of_tokens + of_states) * static_cast<double>(dtypes) * 2;
  if (bytes > static_cast<double>(request.memory_budget))
    throw Error(ErrorKind::input,
                fmt::format("problems of this shape take about {}; the memory budget is {}",
                            size_text(static_cast<std::size_t>(std::min(bytes, 0x1p62))),
                            size_text(request.memory_budget)),
                {}, "fewer tokens or heads, one dtype, or --memory-limit");
}

}  // namespace

report::Document bench(const BenchRequest& wanted) {
  BenchRequest request = wanted;
  if (request.H == 0) request.H = static_cast<std::size_t>(std::max(4, request.threads));
  if (!request.words.selection.dtypes) request.words.selection.dtypes = plan::Names{"fp32"};
  plan::check_words(request.words);
  for (const std::string& name : request.against)
    if (std::ranges::find(rival_names(), name) == rival_names().end())
      throw Error(ErrorKind::usage, fmt::format("--against {}: no such kernel", name), {},
                  join(rival_names()));
  std::vector<DType> dtypes;
  for (const std::string& name : *request.words.selection.dtypes) {
    const auto dtype = numeric::dtype_of_word(name);
    if (!dtype)
      throw Error(ErrorKind::usage, fmt::format("no dtype '{}'", name), {}, "fp64, fp32, bf16, fp16");
    if (std::ranges::find(dtypes, *dtype) == dtypes.end()) dtypes.push_back(*dtype);
  }
  check_sequences(request);
  if (request.decode > 0) request.T = request.sequences = request.decode;
  check_memory(request, dtypes.size());
  const bool backward = request.words.selection.pass == kda::Pass::backward;
  std::map<DType, kda::Problem> problems;
  for (const DType dtype : dtypes) problems.emplace(dtype, bench_problem(request, dtype, backward));
  request.words.chunk_size = request.chunk_size;
  std::vector<Contestant> list = contestants(request, problems);
  std::vector<Contestant*> here, on_devices;
  for (Contestant& item : list) (item.on_device() ? on_devices : here).push_back(&item);

  keep_memory();
  Speeds speeds;
  race(here, request, speeds);
  time_on_devices(on_devices, request, speeds);
  if (!request.against.empty() && !backward)
    for (const auto& [dtype, problem] : problems) {
      if (request.progress) request.progress("the truth");
      const kda::OracleDevice where =
          request.words.oracle_device_for(problem.dimensions(), kda::Pass::forward);
      measure_errors(list, problem, {kda::OraclePrecision::double_double, where}, request.threads);
    }
  report::Section rows = rows_section();
  std::string device;
  bool over_the_peak = false;
  for (const Contestant& item : list) {
    if (!item.is_shown) continue;
    const BenchRow row = finished(item);
    if (row.milliseconds > 0) device = row.device;
    over_the_peak = over_the_peak || row.of_peak > 1;
    add(rows, row);
  }
  const auto column = [&](std::string_view key) {
    const auto found = std::ranges::find(rows.columns, key, &report::Column::key);
    return static_cast<std::size_t>(found - rows.columns.begin());
  };
  rows.scatter = {column("variant"), column("ms"), column("error_o")};
  hide_empty_columns(rows);
  if (over_the_peak)
    rows.notes.emplace_back(
        "more than 100 % of the peak: the machine was busier while the peak was measured");
  report::Document document;
  document.sections = {machine_section(request, problems.begin()->second, speeds, device), std::move(rows)};
  return document;
}

}  // namespace kda_check::bench

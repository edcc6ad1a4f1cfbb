#include "session/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/parallel.hpp"
#include "kda/kernels/table.hpp"
#include "kda/oracle.hpp"
#include "session/answers.hpp"
#include "session/describe.hpp"
#include "session/selection.hpp"

namespace kda_check::session {

namespace {

using Clock = std::chrono::steady_clock;

template <class Body>
double seconds(Body body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Counter-based: element i of stream s is the same whatever else is drawn (splitmix64, G. Steele et al.
/// 2014).
double uniform(std::uint64_t stream, std::uint64_t i) {
  std::uint64_t x = stream * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

tensor::Tensor filled(const char* name, numeric::DType dtype, tensor::Shape shape, std::uint64_t stream,
                      double from, double to) {
  tensor::Tensor result(name, dtype, std::move(shape));
  for (std::size_t i = 0; i < result.size(); ++i) result.set(i, from + (to - from) * uniform(stream, i));
  return result;
}

/// Gflop/s of fused multiply-adds, every thread at it at once, for long enough that waking the threads and a
/// short interruption hardly count.
template <class T>
double fma_peak(int threads, double (*burst)(long, T*)) {
  constexpr long iterations = 100'000;
  constexpr double least_seconds = 0.03;
  std::vector<double> flops(static_cast<std::size_t>(threads));
  const double time = seconds([&] {
    parallel_for(flops.size(), threads, [&](std::size_t item, int) {
      T values[kda::fma_burst_values];
      for (std::size_t i = 0; i < kda::fma_burst_values; ++i) values[i] = static_cast<T>(i + 1);
      const auto start = Clock::now();
      do {
        flops[item] += burst(iterations, values);
      } while (std::chrono::duration<double>(Clock::now() - start).count() < least_seconds);
    });
  });
  double total = 0;
  for (const double part : flops) total += part;
  return total / time * 1e-9;
}

const kda::Variant& contestant_named(const std::string& name) {
  std::vector<std::string> names{"oracle"};
  for (const kda::Variant& variant : kda::variants()) names.emplace_back(variant.name);
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw Error(ErrorKind::usage, fmt::format("no variant '{}'", name), {}, suggest(name, names));
  return kda::variant_named(name);
}

/// One thing to be timed.
struct Contestant {
  BenchRow row;
  numeric::DType dtype;
  bool is_oracle;
  std::function<void()> run;
  std::vector<double> times, shares, ratios;
};

}  // namespace

kda::Problem bench_problem(const BenchRequest& r, numeric::DType dtype) {
  using tensor::Shape;
  kda::Problem problem;
  const double unit = std::sqrt(3.0 / static_cast<double>(r.K));
  problem.q = filled("q", dtype, Shape{r.B, r.T, r.H, r.K}, 1, -unit, unit);
  problem.k = filled("k", dtype, Shape{r.B, r.T, r.H, r.K}, 2, -unit, unit);
  problem.v = filled("v", dtype, Shape{r.B, r.T, r.H, r.V}, 3, -1.7, 1.7);
  const numeric::DType gate_dtype = dtype == numeric::DType::fp64 ? dtype : numeric::DType::fp32;
  problem.g = filled("g", gate_dtype, Shape{r.B, r.T, r.H, r.K}, 4, -0.2, 0);
  problem.beta = filled("beta", gate_dtype, Shape{r.B, r.T, r.H}, 5, 0.1, 0.9);
  problem.options.chunk_size = static_cast<int>(r.chunk_size);
  problem.options.safe_gate = true;
  problem.validate();
  return problem;
}

BenchResult bench(const BenchRequest& wanted, const Log& log) {
  BenchRequest request = wanted;
  if (request.H == 0) request.H = static_cast<std::size_t>(std::max(4, request.threads));
  std::vector<numeric::DType> dtypes;
  if (request.dtypes.empty()) request.dtypes = {"fp32"};
  for (const std::string& name : without_repeats(request.dtypes)) {
    const auto dtype = numeric::dtype_named(name);
    if (!dtype)
      throw Error(ErrorKind::usage, fmt::format("no dtype '{}'", name), {}, "fp64, fp32, bf16, fp16");
    dtypes.push_back(*dtype);
  }
  std::vector<const kda::Variant*> variants;
  bool with_oracle = request.variants.empty();
  for (const std::string& name : without_repeats(request.variants)) {
    if (name == "oracle") {
      with_oracle = true;
    } else {
      variants.push_back(&contestant_named(name));
    }
  }
  if (request.variants.empty())
    for (const kda::Variant& variant : kda::variants())
      if (variant.unavailable().empty()) variants.push_back(&variant);

  check_arithmetic(request.arithmetic, variants);

  std::map<numeric::DType, kda::Problem> problems;
  std::vector<Contestant> contestants;
  std::string unsupported;
  for (const numeric::DType dtype : dtypes) {
    const kda::Problem& problem = problems.emplace(dtype, bench_problem(request, dtype)).first->second;
    for (const kda::Variant* const variant : variants) {
      kda::RunOptions options;
      options.dtype = dtype;
      options.chunk_size = request.chunk_size;
      options.threads = request.threads;
      options.arithmetic = variant->default_arithmetic(problem, dtype);
      for (const std::string& assignment : request.arithmetic)
        if (kda::has_axis(variant->axes, assignment)) kda::set_axis(options.arithmetic, assignment);
      options.memory_limit = fixture::ReadLimits::default_memory_budget();
      if (std::string reason = why_not(*variant, problem, options); !reason.empty()) {
        if (log.warning)
          log.warning(fmt::format("{} {}: {}", variant->name, numeric::name_of(dtype), reason));
        unsupported = std::move(reason);
        continue;
      }
      BenchRow row;
      row.variant = variant->name;
      row.dtype = numeric::name_of(dtype);
      row.arithmetic = kda::describe(options.arithmetic, variant->axes);
      contestants.push_back(
          {row, dtype, false, [variant, options, &problem] { variant->run(problem, options); }, {}, {}, {}});
    }
  }
  if (contestants.empty() && !unsupported.empty()) throw Error(ErrorKind::usage, "bench: " + unsupported);
  if (with_oracle) {
    const kda::Problem& problem = problems.at(dtypes.front());
    BenchRow row;
    row.variant = "oracle";
    row.dtype = "dd";
    row.arithmetic = "double-double, with magnitudes";
    contestants.push_back({row,
                           dtypes.front(),
                           true,
                           [&problem, &request] {
                             kda::run_oracle(problem, kda::OraclePrecision::double_double, request.threads,
                                             {});
                           },
                           {},
                           {},
                           {}});
  }

  BenchResult result;
  const kda::KernelTable& table = kda::kernel_table();
  result.instruction_set = table.instruction_set;
  result.threads = request.threads;
  result.repeats = request.repeats;
  result.shape = shape_text(problems.at(dtypes.front()).dimensions());
  const double heads = static_cast<double>(request.B * request.T * request.H);
  const double flops = 7.0 * static_cast<double>(request.K * request.V);
  std::vector<double> peaks_fp32, peaks_fp64;
  for (Contestant& contestant : contestants) contestant.run();  // warm-up
  for (int repeat = 0; repeat < request.repeats; ++repeat) {
    if (log.progress) log.progress(fmt::format("repeat {} of {}", repeat + 1, request.repeats));
    // Before and after, and the faster counts: whatever else the machine does slows the burst as well.
    const double fp32_before = fma_peak(request.threads, table.fma_burst_fp32);
    const double fp64_before = fma_peak(request.threads, table.fma_burst_fp64);
    std::map<numeric::DType, double> recurrent;
    for (Contestant& contestant : contestants) {
      const double time = seconds(contestant.run) / heads;
      contestant.times.push_back(time);
      if (contestant.row.variant == "recurrent") recurrent[contestant.dtype] = time;
    }
    peaks_fp32.push_back(std::max(fp32_before, fma_peak(request.threads, table.fma_burst_fp32)));
    peaks_fp64.push_back(std::max(fp64_before, fma_peak(request.threads, table.fma_burst_fp64)));
    for (Contestant& contestant : contestants) {
      const double time = contestant.times.back();
      const double peak = contestant.dtype == numeric::DType::fp64 ? peaks_fp64.back() : peaks_fp32.back();
      contestant.shares.push_back(flops / time * 1e-9 / peak);
      if (recurrent.count(contestant.dtype) > 0)
        contestant.ratios.push_back(time / recurrent[contestant.dtype]);
    }
  }
  result.peak_fp32 = median(peaks_fp32);
  result.peak_fp64 = median(peaks_fp64);
  for (Contestant& contestant : contestants) {
    const double time = median(contestant.times);
    contestant.row.microseconds = time * 1e6;
    contestant.row.gflops = flops / time * 1e-9;
    contestant.row.of_peak = contestant.is_oracle ? 0 : median(contestant.shares);
    contestant.row.of_recurrent = median(contestant.ratios);
    result.rows.push_back(contestant.row);
  }
  return result;
}

}  // namespace kda_check::session

#include "bench/fma_peak.hpp"

#include <vector>

#include "base/threads/parallel.hpp"
#include "bench/stopwatch.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::bench {

namespace {

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

}  // namespace

FmaPeak measured_fma_peak(int threads) {
  const kda::KernelTable& table = kda::kernel_table();
  return {fma_peak(threads, table.fma_burst_fp32), fma_peak(threads, table.fma_burst_fp64)};
}

}  // namespace kda_check::bench

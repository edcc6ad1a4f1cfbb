#include "kda/gate_statistics.hpp"

#include <algorithm>
#include <cmath>

#include "base/parallel.hpp"
#include "kda/head_io.hpp"

namespace kda_check::kda {

namespace {

GateStatistics statistics_of_head(const Problem& problem, const Sequence& s, std::size_t head,
                                  std::size_t chunk_size) {
  const std::size_t K = problem.dimensions().K;
  const HeadReader<double> reader(problem, Operations{});
  const std::size_t rows = std::min(chunk_size, s.length());
  tensor::Scratch<double> g(rows * K), from_start(K), total(K), rounding(K);
  tensor::Scratch<float> decay(rows * K);
  total.fill(0);
  GateStatistics statistics;
  for (std::size_t begin = s.begin; begin < s.end; begin += chunk_size) {
    const std::size_t count = std::min(chunk_size, s.end - begin);
    reader.log_decay(s, head, begin, count, g.data(), K);
    from_start.fill(0);
    rounding.fill(0);
    for (std::size_t i = 0; i < count * K; ++i) decay[i] = static_cast<float>(g[i]);
    kernels<float>().exponential(Exponential::exact, decay.data(), decay.data(), count * K);
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t k = 0; k < K; ++k) {
        from_start[k] += g[t * K + k];
        total[k] += std::fabs(g[t * K + k]);
        const double sum = std::fabs(from_start[k]), remembered = static_cast<double>(decay[t * K + k]);
        rounding[k] = sum + (remembered > 0 ? remembered * rounding[k] : 0);
        statistics.largest_chunk_sum = std::max(statistics.largest_chunk_sum, sum);
        statistics.gate_rounding = std::max(statistics.gate_rounding, rounding[k]);
      }
  }
  const auto length = static_cast<double>(s.length());
  for (std::size_t k = 0; k < K; ++k)
    statistics.persistence = std::max(statistics.persistence, total[k] > 1 ? length / total[k] : length);
  return statistics;
}

}  // namespace

GateStatistics gate_statistics(const Problem& problem, std::size_t chunk_size, int threads) {
  const std::vector<Sequence> sequences = problem.sequences();
  const std::size_t heads = problem.dimensions().HV;
  std::vector<GateStatistics> parts(sequences.size() * heads);
  parallel_for(parts.size(), threads, [&](std::size_t item, int) {
    parts[item] = statistics_of_head(problem, sequences[item / heads], item % heads, chunk_size);
  });
  GateStatistics whole;
  for (const GateStatistics& part : parts) {
    whole.largest_chunk_sum = std::max(whole.largest_chunk_sum, part.largest_chunk_sum);
    whole.gate_rounding = std::max(whole.gate_rounding, part.gate_rounding);
    whole.persistence = std::max(whole.persistence, part.persistence);
  }
  return whole;
}

}  // namespace kda_check::kda

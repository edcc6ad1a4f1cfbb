#include "kda/bounds/gate_statistics.hpp"

#include <algorithm>
#include <cmath>

#include "base/threads/parallel.hpp"
#include "kda/head/head_io.hpp"

namespace kda_check::kda {

namespace {

/// Largest values of one head of one sequence.
struct Largest {
  double chunk_sum = 0, gate_rounding = 0, persistence = 0;
};

/// One head of one sequence, whose share of the statistics it fills.
class HeadScan {
 public:
  HeadScan(const Problem& problem, const Sequence& sequence, std::size_t head, std::size_t chunk_size,
           GateStatistics& statistics)
      : problem_(problem),
        d_(problem.dimensions()),
        s_(sequence),
        head_(head),
        chunk_size_(chunk_size),
        statistics_(statistics),
        channels_(&statistics.channels[(sequence.index * d_.HV + head) * d_.K]),
        g_(std::min(chunk_size, sequence.length()) * d_.K),
        decay_(g_.size()),
        reader_(problem, Operations{}) {}

  Largest run() {
    for (std::size_t k = 0; k < d_.K; ++k) channels_[k].left = 1;
    keep(0, [](std::size_t) { return 0.0; });
    for (std::size_t begin = s_.begin; begin < s_.end; begin += chunk_size_) forwards(begin);
    if (problem_.has_loss()) {
      std::vector<double> left(d_.K, 1.0);
      const std::size_t chunks = (s_.length() + chunk_size_ - 1) / chunk_size_;
      for (std::size_t chunk = chunks; chunk-- > 0;) backwards(s_.begin + chunk * chunk_size_, left);
    }
    statistics_.head_rounding[s_.index * d_.HV + head_] = largest_.gate_rounding;
    return largest_;
  }

 private:
  /// The gates of a chunk, and what they leave of what was there: nothing grows, for the error grows with it.
  std::size_t read(std::size_t begin) {
    const std::size_t count = std::min(chunk_size_, s_.end - begin);
    reader_.log_decay({s_, head_, begin, count}, g_.data(), d_.K);
    for (std::size_t i = 0; i < count * d_.K; ++i)
      decay_[i] = std::isnan(g_[i]) ? -HUGE_VALF : static_cast<float>(std::min(g_[i], 0.0));
    kernels<float>().exponential(Exponential::exact, decay_.data(), decay_.data(), count * d_.K);
    return count;
  }

  /// Of checkpoints behind so many tokens. `rounding`: as it would be were they all.
  template <class RoundingOf>
  void keep(std::size_t tokens, const RoundingOf& rounding) {
    problem_.for_checkpoints(s_.index, tokens, [&](std::size_t row) {
      for (std::size_t k = 0; k < d_.K; ++k) {
        GateStatistics::Channel& kept = statistics_.checkpoints[(row * d_.HV + head_) * d_.K + k];
        kept = channels_[k], kept.rounding = rounding(k);
      }
    });
  }

  std::size_t place(std::size_t token) const { return (s_.batch * d_.T + token) * d_.HV + head_; }

  void forwards(std::size_t begin) {
    const std::size_t count = read(begin);
    std::vector<double> sum(d_.K, 0.0), rounding(d_.K, 0.0), left(d_.K, 1.0);
    // Sums in another order than one by one are rounded at either end of a difference.
    const auto of_either_end = [&](std::size_t k) {
      return std::max(rounding[k] + std::fabs(sum[k]), left[k] * channels_[k].rounding);
    };
    for (std::size_t t = 0; t < count; ++t) {
      const auto age = static_cast<double>(begin + t + 1 - s_.begin);
      double persistence = 0, most = 0;
      for (std::size_t k = 0; k < d_.K; ++k) {
        const double kept = static_cast<double>(decay_[t * d_.K + k]);
        GateStatistics::Channel& channel = channels_[k];
        sum[k] += g_[t * d_.K + k];
        left[k] *= kept;
        channel.left *= kept;
        channel.behind = kept * channel.behind + 1;
        rounding[k] = std::fabs(sum[k]) + (kept > 0 ? kept * rounding[k] : 0);
        persistence =
            std::max(persistence, channel.behind + (problem_.initial_state ? age * channel.left : 0));
        most = std::max({most, rounding[k], left[k] * channel.rounding});
        largest_.chunk_sum = std::max(largest_.chunk_sum, std::fabs(sum[k]));
        largest_.gate_rounding = std::max(largest_.gate_rounding, rounding[k]);
      }
      largest_.persistence = std::max(largest_.persistence, persistence);
      statistics_.behind[place(begin + t)] = static_cast<float>(persistence);
      statistics_.rounding[place(begin + t)] = static_cast<float>(most);
      keep(begin + t + 1 - s_.begin, of_either_end);
    }
    for (std::size_t k = 0; k < d_.K; ++k) channels_[k].rounding = of_either_end(k);
  }

  void backwards(std::size_t begin, std::vector<double>& left) {
    for (std::size_t t = read(begin); t-- > 0;) {
      const auto age = static_cast<double>(s_.end - begin - t);
      double persistence = 0;
      for (std::size_t k = 0; k < d_.K; ++k) {
        GateStatistics::Channel& channel = channels_[k];
        channel.ahead += 1;  // the gradient of the state that this token leaves behind
        persistence = std::max(persistence, channel.ahead + (problem_.state_gradient ? age * left[k] : 0));
        const double kept = static_cast<double>(decay_[t * d_.K + k]);
        channel.ahead *= kept;
        left[k] *= kept;
      }
      statistics_.ahead[place(begin + t)] = static_cast<float>(persistence);
    }
  }

  const Problem& problem_;
  const Dimensions d_;
  const Sequence& s_;
  const std::size_t head_, chunk_size_;
  GateStatistics& statistics_;
  GateStatistics::Channel* const channels_;
  tensor::Scratch<double> g_;
  tensor::Scratch<float> decay_;
  const HeadReader<double> reader_;
  Largest largest_;
};

}  // namespace

GateStatistics gate_statistics(const Problem& problem, std::size_t chunk_size, int threads) {
  const std::vector<Sequence> sequences = problem.sequences();
  const Dimensions& d = problem.dimensions();
  const std::size_t rows = d.B * d.T * d.HV;
  GateStatistics whole;
  whole.behind.assign(rows, 1.0f);
  whole.rounding.assign(rows, 0.0f);
  if (problem.has_loss()) whole.ahead.assign(rows, 1.0f);
  whole.head_rounding.assign(sequences.size() * d.HV, 0.0);
  whole.channels.resize(sequences.size() * d.HV * d.K);
  whole.checkpoints.resize(d.checkpoints * d.HV * d.K);
  std::vector<Largest> parts(sequences.size() * d.HV);
  parallel_for(parts.size(), threads, [&](std::size_t item, int) {
    parts[item] = HeadScan(problem, sequences[item / d.HV], item % d.HV, chunk_size, whole).run();
  });
  for (const Largest& part : parts) {
    whole.largest_chunk_sum = std::max(whole.largest_chunk_sum, part.chunk_sum);
    whole.gate_rounding = std::max(whole.gate_rounding, part.gate_rounding);
    whole.persistence = std::max(whole.persistence, part.persistence);
  }
  return whole;
}

}  // namespace kda_check::kda

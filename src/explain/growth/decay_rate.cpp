#include "explain/growth/decay_rate.hpp"

#include <algorithm>
#include <cmath>

#include "numeric/elementary.hpp"

namespace kda_check::explain {

void DecayRateScan::add(std::size_t rows, std::size_t stride, const double* G, const double* k,
                        const double* read, const double* beta) {
  for (std::size_t i = 0; i < rows; ++i) {
    double square = 0;
    for (std::size_t c = 0; c < key_dim_; ++c) {
      const double at = G[i * stride + c], g = i == 0 ? at : at - G[(i - 1) * stride + c];
      kept_[c] = numeric::exp(std::min(g, 0.0)) * kept_[c] + 1;
      worst_.persistence = std::max(worst_.persistence, kept_[c]);
      total_ += g;
      least_ = std::min(least_, g);
      worst_.largest_chunk_sum = std::max(worst_.largest_chunk_sum, std::fabs(at));
      square += read[i * stride + c] * k[i * stride + c];
    }
    const double write = beta[i] * square;
    worst_.largest_write = std::max(worst_.largest_write, write);
    worst_.growth += numeric::log(std::max(1.0, std::fabs(1 - write)));
  }
  tokens_ += static_cast<double>(rows);
}

DecayRate DecayRateScan::result() const {
  DecayRate result = worst_;
  if (tokens_ > 0) result.mean_log_decay = total_ / (tokens_ * static_cast<double>(key_dim_));
  result.least_log_decay = least_;
  return result;
}

DecayRate merged(const DecayRate& a, double a_tokens, const DecayRate& b, double b_tokens) {
  const double tokens = a_tokens + b_tokens;
  DecayRate both;
  if (tokens > 0) both.mean_log_decay = (a.mean_log_decay * a_tokens + b.mean_log_decay * b_tokens) / tokens;
  both.least_log_decay = std::min(a.least_log_decay, b.least_log_decay);
  both.persistence = std::max(a.persistence, b.persistence);
  both.largest_chunk_sum = std::max(a.largest_chunk_sum, b.largest_chunk_sum);
  both.largest_write = std::max(a.largest_write, b.largest_write);
  both.growth = std::max(a.growth, b.growth);
  return both;
}

}  // namespace kda_check::explain

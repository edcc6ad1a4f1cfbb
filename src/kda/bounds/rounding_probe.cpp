#include "kda/bounds/rounding_probe.hpp"

#include <algorithm>
#include <cmath>

#include "kda/kernels/table.hpp"
#include "numeric/random.hpp"

namespace kda_check::kda {

namespace {

double energy(const double* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return sum;
}

}  // namespace

static_assert(probe_width == 8);  // projections

RoundingProbe::RoundingProbe(std::size_t K, std::size_t V, std::size_t chunk_size, std::uint64_t stream)
    : K_(K),
      V_(V),
      chunk_size_(chunk_size),
      stream_(stream),
      signs_(V * width),
      state_(K * width),
      error_(K * width),
      solved_(K * width),
      written_(K * width),
      carried_(K * width),
      key_stride_((chunk_size + 15) / 16 * 16),
      keys_(key_stride_ * K),
      own_(K),
      products_(key_stride_),
      kernels_(kernel_table().probe) {
  std::fill_n(keys_.data(), key_stride_ * K, 0.0F);
  const numeric::Random random(0, 2 * stream_);
  const double size = 1 / std::sqrt(static_cast<double>(width));
  for (std::size_t v = 0; v < V; ++v)
    for (std::size_t i = 0; i < width; ++i)
      signs_[v * width + i] = (random.bits(v) >> (8 + i) & 1) == 0 ? size : -size;
}

void RoundingProbe::project(const double* v, double unit, double* projected) const {
  std::fill_n(projected, width, 0.0);
  for (std::size_t j = 0; j < V_; ++j) {
    const double value = v[j] / unit;
    for (std::size_t i = 0; i < width; ++i) projected[i] += value * signs_[j * width + i];
  }
}

void RoundingProbe::begin(const double* state, double unit) {
  for (std::size_t k = 0; k < K_; ++k) project(state + k * V_, unit, &state_[k * width]);
}

void RoundingProbe::begin_chunk() {
  for (std::size_t i = 0; i < written_.size(); ++i) {
    carried_[i] += written_[i];
    written_[i] = 0;
  }
  writes_.clear();
}

double RoundingProbe::terms_of_chunk(const float* decay, const double* key, const double* read) {
  for (std::size_t k = 0; k < K_; ++k) own_[k] = static_cast<float>(read[k]);
  kernels_.products({K_, writes_.size(), key_stride_, decay, own_.data(), keys_.data(), products_.data()});
  double terms = 0;
  for (std::size_t j = 0; j < writes_.size(); ++j) {
    const auto gram = static_cast<double>(products_[j]);
    terms += gram * gram * writes_[j];
  }
  for (std::size_t k = 0; k < K_; ++k) keys_[k * key_stride_ + writes_.size()] = static_cast<float>(key[k]);
  return terms;
}

ProbedErrors RoundingProbe::token(const float* decay, const double* query, const double* key, double beta,
                                  const double* v, double unit, const double* read) {
  if (token_ % chunk_size_ == 0) begin_chunk();
  const ProbeRows rows{state_.data(), error_.data(), solved_.data(), written_.data(), carried_.data()};
  if (read == nullptr) read = key;
  ProbeReading reading{K_, decay, read, rows, {}, {}, {}, {}, 0};
  kernels_.read(reading);
  const double terms = reading.terms;
  const double predicted = energy(reading.prediction, width), each = 1 / static_cast<double>(width);
  const double of_terms = std::sqrt((predicted + terms) * each);
  const double solving = std::sqrt(std::max(terms, terms_of_chunk(decay, key, read)) * each);
  const double writing = std::sqrt(predicted * each);
  const std::uint64_t bits = numeric::Random(0, 2 * stream_ + 1).bits(token_);
  const auto sign = [&](std::size_t i) { return (bits >> (8 + i) & 1) == 0 ? 1.0 : -1.0; };
  double difference[width], of_error[width], of_solved[width], added[width];
  project(v, unit, difference);
  for (std::size_t i = 0; i < width; ++i) {
    difference[i] -= reading.prediction[i];
    of_error[i] = of_terms * sign(i) - reading.error[i];
    of_solved[i] = solving * sign(i) - reading.solved[i];
    added[i] = writing * sign(width + i);
  }
  ProbeWriting written{K_,    key, query, beta, rows, difference, of_error, of_solved, reading.carried,
                       added, {},  {},    {},   {}};
  kernels_.write(written);
  writes_.push_back(beta * beta * energy(difference, width));
  ++token_;
  for (std::size_t i = 0; i < width; ++i) written.read_written[i] += written.read_carried[i];
  return {energy(written.read_error, width), energy(written.read_solved, width),
          energy(written.read_written, width)};
}

ProbedErrors RoundingProbe::of_state() const {
  double writing = 0;
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    const double error = carried_[i] + written_[i];
    writing += error * error;
  }
  return {energy(error_.data(), error_.size()), energy(solved_.data(), solved_.size()), writing};
}

}  // namespace kda_check::kda

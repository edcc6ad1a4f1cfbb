#include "kda/rounding_probe.hpp"

#include <algorithm>
#include <cmath>

#include "numeric/random.hpp"

namespace kda_check::kda {

namespace {

template <std::size_t width>
void fade(std::vector<double>& rows, const float* decay) {
  for (std::size_t k = 0; k < rows.size() / width; ++k) {
    const auto kept = static_cast<double>(decay[k]);
    for (std::size_t i = 0; i < width; ++i) rows[k * width + i] *= kept;
  }
}

/// sum_k x_k rows_k, into `sums`.
template <std::size_t width>
void along(const double* x, const std::vector<double>& rows, double* sums) {
  std::fill_n(sums, width, 0.0);
  for (std::size_t k = 0; k < rows.size() / width; ++k)
    for (std::size_t i = 0; i < width; ++i) sums[i] += x[k] * rows[k * width + i];
}

/// rows_k += factor x_k row
template <std::size_t width>
void add_along(const double* x, double factor, const double* row, std::vector<double>& rows) {
  for (std::size_t k = 0; k < rows.size() / width; ++k) {
    const double by = factor * x[k];
    for (std::size_t i = 0; i < width; ++i) rows[k * width + i] += by * row[i];
  }
}

double energy(const double* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return sum;
}

}  // namespace

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
      keys_(chunk_size * K) {
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

double RoundingProbe::terms_of_chunk(const float* decay, const double* key) {
  tensor::Scratch<float> own(K_);
  for (std::size_t k = 0; k < K_; ++k) own[k] = static_cast<float>(key[k]);
  double terms = 0;
  for (std::size_t j = 0; j < writes_.size(); ++j) {
    float* const earlier = keys_.data() + j * K_;
    float product = 0;
    for (std::size_t k = 0; k < K_; ++k) {
      earlier[k] *= decay[k];
      product += own[k] * earlier[k];
    }
    const auto gram = static_cast<double>(product);
    terms += gram * gram * writes_[j];
  }
  std::copy_n(own.data(), K_, keys_.data() + writes_.size() * K_);
  return terms;
}

ProbedErrors RoundingProbe::token(const float* decay, const double* query, const double* key, double beta,
                                  const double* v, double unit) {
  if (token_ % chunk_size_ == 0) begin_chunk();
  for (std::vector<double>* const rows : {&state_, &error_, &solved_, &written_, &carried_})
    fade<width>(*rows, decay);

  double prediction[width], of_error[width], of_solved[width], of_carried[width], difference[width],
      added[width];
  along<width>(key, state_, prediction);
  along<width>(key, error_, of_error);
  along<width>(key, solved_, of_solved);
  along<width>(key, carried_, of_carried);
  double terms = 0;
  for (std::size_t k = 0; k < K_; ++k) terms += key[k] * key[k] * energy(&state_[k * width], width);
  const double predicted = energy(prediction, width), each = 1 / static_cast<double>(width);
  const double of_terms = std::sqrt((predicted + terms) * each);
  const double solving = std::sqrt(std::max(terms, terms_of_chunk(decay, key)) * each);
  const double writing = std::sqrt(predicted * each);
  const std::uint64_t bits = numeric::Random(0, 2 * stream_ + 1).bits(token_);
  const auto sign = [&](std::size_t i) { return (bits >> (8 + i) & 1) == 0 ? 1.0 : -1.0; };
  project(v, unit, difference);
  for (std::size_t i = 0; i < width; ++i) {
    difference[i] -= prediction[i];
    of_error[i] = of_terms * sign(i) - of_error[i];
    of_solved[i] = solving * sign(i) - of_solved[i];
    added[i] = writing * sign(width + i);
  }
  add_along<width>(key, beta, difference, state_);
  add_along<width>(key, beta, of_error, error_);
  add_along<width>(key, beta, of_solved, solved_);
  add_along<width>(key, -beta, of_carried, carried_);
  add_along<width>(key, beta, added, written_);
  writes_.push_back(beta * beta * energy(difference, width));
  ++token_;

  along<width>(query, error_, of_error);
  along<width>(query, solved_, of_solved);
  along<width>(query, carried_, of_carried);
  along<width>(query, written_, added);
  for (std::size_t i = 0; i < width; ++i) added[i] += of_carried[i];
  return {energy(of_error, width), energy(of_solved, width), energy(added, width)};
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

#include "explain/growth/state_forecast.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "base/threads/parallel.hpp"
#include "kda/arithmetic/stored_words.hpp"
#include "kda/head/token_blocks.hpp"
#include "numeric/elementary.hpp"
#include "numeric/stored_formats.hpp"

namespace kda_check::explain {

namespace {

using kda::StateRounding;
using kda::StateScale;
using kda::StoredState;

constexpr std::string_view forecast_words[] = {
    "bf16",          "bf16+stochastic",         "bf16+feedback",
    "fp16",          "fp16+stochastic",         "fp16+feedback",
    "e4m3+row",      "e4m3+row+stochastic",     "e4m3+row+feedback",
    "int8+row",      "int8+row+stochastic",     "int8+row+feedback",
    "int8+head",     "int8+head+stochastic",    "int8+head+feedback",
    "e4m3+unscaled", "e4m3+unscaled+stochastic"};

/// Of the square of a number's binade: the mean of its square by that of x^2, logarithms being uniform.
constexpr double of_binade = 0.462;

/// The mean of |x| where that of x^2 is 1, normally distributed.
constexpr double mean_magnitude = 0.798;

/// The mean of the largest of `count` magnitudes, normally distributed with variance 1.
double largest_of(double count) {
  const double l = numeric::log(2 * std::max(count, 2.0)), root = std::sqrt(2 * l);
  return root - (numeric::log(l) + numeric::log(4 * std::numbers::pi)) / (2 * root) +
         std::numbers::egamma / root;
}

/// The largest magnitude among rows of these mean squares, `columns` elements each.
struct Extremes {
  double of_row, of_all;

  Extremes(double K, double columns) : of_row(largest_of(columns)), of_all(largest_of(columns * K)) {}
  double square(double most, double mean) const {
    return std::max(of_row * of_row * most, of_all * of_all * mean);
  }
};

/// A power of two near the largest of what states are made of; in units of it their squares are numbers, and
/// so are those of the steps of a format.
double unit_of(const kda::Problem& problem) {
  constexpr int most = 450;
  double largest = 0;
  const auto look = [&](const tensor::Tensor& tensor) {
    for (std::size_t i = 0; i < tensor.size(); ++i)
      if (const double size = std::fabs(tensor.value(i)); std::isfinite(size))
        largest = std::max(largest, size);
  };
  look(problem.v);
  if (problem.initial_state) look(*problem.initial_state);
  return largest == 0 ? 1 : std::ldexp(1.0, std::clamp(std::ilogb(largest), -most, most));
}

/// Sums over the tokens of a head of a sequence.
struct Sums {
  double o_error = 0, o = 0, state_error = 0, state = 0;
  double change = 0, changes = 0, largest = 0;

  void add(const Sums& other) {
    o_error += other.o_error, o += other.o, state_error += other.state_error, state += other.state;
    change += other.change, changes += other.changes, largest = std::max(largest, other.largest);
  }
};

/// The errors of a state that is stored in one way.
class Errors {
 public:
  Errors(const StoredState& stored, std::size_t K, std::size_t V, double unit)
      : stored_(stored),
        unit_(unit),
        format_(numeric::stored_formats[static_cast<std::size_t>(stored.format)]),
        row_(1, static_cast<double>(V)),
        head_(static_cast<double>(K), static_cast<double>(V)),
        error_(K),
        left_(K) {
    unit2_ = of_binade;
    for (int bit = 1; bit < format_.precision; ++bit) unit2_ /= 4;
    double least = 2;
    for (int e = 0; e < format_.min_exponent; ++e) least *= 2;
    for (int e = 0; e > format_.min_exponent; --e) least /= 2;
    for (int bit = 0; bit < format_.precision; ++bit) least /= 2;
    least2_ = least * least;
    if (stored.scale == StateScale::none) least2_ = least / unit * (least / unit);
  }

  /// Rows decay, are read along `read`, and change along `key`.
  void token(const float* decay, const double* key, const double* read, double beta) {
    double read2 = 0;
    for (std::size_t k = 0; k < error_.size(); ++k) {
      const double a2 = static_cast<double>(decay[k]) * static_cast<double>(decay[k]);
      error_[k] *= a2, left_[k] *= a2;
      read2 += read[k] * read[k] * (error_[k] + left_[k]);
    }
    for (std::size_t k = 0; k < error_.size(); ++k) {
      const double weight = beta * key[k];
      // NaN stays NaN.
      error_[k] = std::max(error_[k] * (1 - 2 * weight * read[k]), 0.0) + weight * weight * read2;
    }
  }
  /// sum_k query_k^2 of the errors in row k
  double read(const double* query) const {
    double sum = 0;
    for (std::size_t k = 0; k < error_.size(); ++k) sum += query[k] * query[k] * (error_[k] + left_[k]);
    return sum;
  }
  /// Every element is stored. `squares`: of the rows; `writes`: what this token wrote to them, `changes`:
  /// what it changed in them, with the decay.
  void store(const float* decay, const std::vector<double>& squares, const std::vector<double>& writes,
             const std::vector<double>& changes, Sums& sums) {
    double most = 0, mean = 0;
    for (const double square : squares) most = std::max(most, square), mean += square;
    const double of_head = head_.square(most, mean / static_cast<double>(squares.size()));
    const double top2 = format_.largest * format_.largest;
    for (std::size_t k = 0; k < error_.size(); ++k) {
      const double peak = stored_.scale == StateScale::row ? row_.square(squares[k], squares[k]) : of_head;
      const double scale2 = stored_.scale == StateScale::none ? 1 : peak / top2;
      const double step2 = std::max(unit2_ * squares[k], least2_ * scale2);
      const double rounding = std::min(step2 / 12, squares[k]);
      if (stored_.rounding == StateRounding::feedback)
        left_[k] = rounding;
      else if (stored_.rounding == StateRounding::stochastic)
        error_[k] += by_lot(step2, squares[k] + error_[k], writes[k], 1 - static_cast<double>(decay[k]));
      else  // where all is rounded to zero the error is the state
        error_[k] = std::min(error_[k] + rounding, squares[k]);
      if (step2 > 0) sums.change += std::min(1e6, changes[k] / step2), ++sums.changes;
    }
    if (stored_.scale == StateScale::none)
      sums.largest = std::max(sums.largest, std::sqrt(of_head / top2) * unit_);
  }
  double total() const {
    double sum = 0;
    for (std::size_t k = 0; k < error_.size(); ++k) sum += error_[k] + left_[k];
    return sum;
  }

 private:
  /// What rounding by lot adds: d (step - d) of a number d beyond one of the grid, a sixth of the step's
  /// square in the mean of all d. A state that no scale moves against the grid lies on it but for what a
  /// token changes. Below a step it is 0 or a step: its magnitude is that of its square over a step.
  double by_lot(double step2, double square, double write, double lost) const {
    if (step2 == 0) return 0;
    const double step = std::sqrt(step2);
    const double size = std::min(mean_magnitude * std::sqrt(square), square / step);
    const double beyond =
        mean_magnitude * std::sqrt(write) + (stored_.scale == StateScale::none ? lost : 1) * size;
    return std::min(step2 / 6, step * beyond);
  }

  const StoredState stored_;
  const double unit_;  ///< of states: squares are in units of its square
  const numeric::StoredFormat format_;
  const Extremes row_, head_;
  double unit2_ = 0, least2_ = 0;  ///< squares: of a step by its number, and of the least step
  std::vector<double> error_,
      left_;  ///< [K]: carried on; and kept aside to be added before the next rounding
};

class Head {
 public:
  Head(const kda::Problem& problem, const kda::Sequence& sequence, std::size_t head,
       const std::vector<StoredState>& forms, double unit)
      : d_(problem.dimensions()),
        unit_(unit),
        head_(head),
        reader_(problem),
        blocks_(reader_, problem, sequence),
        squares_(d_.K),
        writes_(d_.K),
        changes_(d_.K) {
    for (const StoredState& form : forms) errors_.emplace_back(form, d_.K, d_.V, unit);
    std::vector<double> state(d_.K * d_.V);
    reader_.state(sequence, head, state.data(), d_.V);
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t v = 0; v < d_.V; ++v)
        squares_[k] += square(state[k * d_.V + v]) / static_cast<double>(d_.V);
  }

  std::vector<Sums> run() {
    std::vector<Sums> sums(errors_.size());
    blocks_.over([&](std::size_t begin, std::size_t count) {
      blocks_.read_tokens(head_, begin, count);
      blocks_.read_v(head_, begin, count);
      for (std::size_t t = 0; t < count; ++t) token(t, sums);
    });
    for (std::size_t f = 0; f < errors_.size(); ++f) {
      for (const double square : squares_) sums[f].state += square;
      sums[f].state_error += errors_[f].total();
    }
    return sums;
  }

 private:
  void token(std::size_t t, std::vector<Sums>& sums) {
    const std::size_t K = d_.K;
    const float* const decay = &blocks_.decay[t * K];
    const double *const key = &blocks_.k[t * K], *const query = &blocks_.q[t * K];
    const double* const read = blocks_.read.size() > 0 ? &blocks_.read[t * K] : key;
    const double beta = blocks_.beta[t];
    double written2 = 0, o2 = 0;
    for (std::size_t v = 0; v < d_.V; ++v) written2 += square(blocks_.values[t * d_.V + v]);
    written2 /= static_cast<double>(d_.V);
    for (std::size_t k = 0; k < K; ++k) {
      const auto a = static_cast<double>(decay[k]);
      changes_[k] = (1 - a) * (1 - a) * squares_[k];
      squares_[k] *= a * a;
      written2 += read[k] * read[k] * squares_[k];
    }
    for (std::size_t k = 0; k < K; ++k) {
      const double weight = beta * key[k];
      writes_[k] = weight * weight * written2;
      squares_[k] = std::max(squares_[k] * (1 - 2 * weight * read[k]), 0.0) + writes_[k];
      changes_[k] += writes_[k];
      o2 += query[k] * query[k] * squares_[k];
    }
    for (std::size_t f = 0; f < errors_.size(); ++f) {
      errors_[f].token(decay, key, read, beta);
      sums[f].o += o2;
      sums[f].o_error += errors_[f].read(query);
      errors_[f].store(decay, squares_, writes_, changes_, sums[f]);
    }
  }

  double square(double x) const { return x / unit_ * (x / unit_); }

  const kda::Dimensions d_;
  const double unit_;
  const std::size_t head_;
  const kda::HeadReader<double> reader_;
  kda::TokenBlocks blocks_;
  /// [K]: mean squares over V of what the state has, of what a token writes to it, and of what it changes
  std::vector<double> squares_, writes_, changes_;
  std::vector<Errors> errors_;
};

double relative(double error, double size) { return error == 0 ? 0 : std::sqrt(error / size); }

StateForecast forecast_of(const StoredState& stored, const Sums& sums) {
  return {stored, relative(sums.o_error, sums.o), relative(sums.state_error, sums.state), sums.largest,
          sums.changes > 0 ? std::sqrt(sums.change / sums.changes) : 0};
}

}  // namespace

bool StateForecast::stagnates() const {
  return stored.rounding == StateRounding::nearest && change < least_change;
}

std::vector<StateForecast> forecast_states(const kda::Problem& problem, int threads) {
  std::vector<StoredState> forms;
  for (const std::string_view words : forecast_words) forms.push_back(kda::stored_from(words));
  const std::vector<kda::Sequence> sequences = problem.sequences();
  const std::size_t heads = problem.dimensions().HV;
  std::vector<std::vector<Sums>> parts(sequences.size() * heads);
  const double unit = unit_of(problem);
  parallel_for(parts.size(), threads, [&](std::size_t item, int) {
    parts[item] = Head(problem, sequences[item / heads], item % heads, forms, unit).run();
  });
  std::vector<StateForecast> rows;
  for (std::size_t f = 0; f < forms.size(); ++f) {
    Sums all;
    for (const std::vector<Sums>& part : parts) all.add(part[f]);
    rows.push_back(forecast_of(forms[f], all));
  }
  return rows;
}

}  // namespace kda_check::explain

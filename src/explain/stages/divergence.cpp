#include "explain/stages/divergence.hpp"
#include "kda/arithmetic/rounded.hpp"
#include "numeric/elementary.hpp"

#include <algorithm>
#include <cmath>

namespace kda_check::explain {

namespace {

using kda::rounded;
using kda::Rounding;
using Values = std::vector<float>;
using Wide = std::vector<double>;

/// As fp32 holds it, then through the cast point: infinite beyond the range of either.
double through(Rounding rounding, double x) {
  return static_cast<double>(rounded(rounding, static_cast<float>(x)));
}

Values rounded(Rounding rounding, Values m) {
  for (float& entry : m) entry = rounded(rounding, entry);
  return m;
}

double unit_roundoff(Rounding rounding) {
  switch (rounding) {
    case Rounding::none:
      break;
    case Rounding::bf16:
      return 0x1p-8;
    case Rounding::fp16:
      return 0x1p-11;
    case Rounding::tf32:
      return 0x1p-10;
  }
  return 0x1p-24;
}

/// a b of lower triangular matrices, plus `start`, rounded at the end.
Values product(const Values& a, const Values& b, std::size_t n, Rounding rounding,
               const Values* start = nullptr) {
  Values sum(n * n, 0.0f);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t m = 0; m <= i; ++m)
      for (std::size_t j = 0; j <= m; ++j)  // fused, but for rare double roundings: the product is exact
        sum[i * n + j] =
            static_cast<float>(static_cast<double>(a[i * n + m]) * static_cast<double>(b[m * n + j]) +
                               static_cast<double>(sum[i * n + j]));
  if (start != nullptr)
    for (std::size_t e = 0; e < n * n; ++e) sum[e] = (*start)[e] + sum[e];
  return rounded(rounding, std::move(sum));
}

/// X = I - L; P = L^2; X += X P; P = P^2; X += X P ... (docs/kda.md, "Inverse formulations", c). Everything
/// is rounded once it is formed, L first: an X and a P that belong to different L would err by far more.
Values doubling(const Values& L, std::size_t n, Rounding rounding) {
  Values power = rounded(rounding, L), x(n * n);
  for (std::size_t e = 0; e < n * n; ++e) x[e] = -power[e];
  for (std::size_t i = 0; i < n; ++i) x[i * n + i] = 1;
  for (std::size_t p = 2; p < n; p *= 2) {
    power = product(power, power, n, rounding);
    x = product(x, power, n, rounding, &x);
  }
  return x;
}

/// (I + L)^-1 as a run forms it from blocks of `side` rows.
class BlockInverse {
 public:
  BlockInverse(const Wide& L, std::size_t n, std::size_t side, const kda::CastPoints& casts)
      : n_(n), side_(side), rounding_(casts.inverse_operands), L_(n * n), x_(n * n, 0.0f) {
    for (std::size_t e = 0; e < n * n; ++e) L_[e] = rounded(casts.L, static_cast<float>(L[e]));
  }

  /// Diagonal blocks by doubling, what is below them by X_ij = -X_ii (sum_m L_im X_mj), the factors of every
  /// product rounded (docs/kda.md, "Inverse formulations").
  Wide result() {
    for (std::size_t from = 0; from < n_; from += side_) {
      invert_block(from);
      for (std::size_t column = 0; column < from; ++column) fill_below(from, column);
    }
    return {x_.begin(), x_.end()};
  }

 private:
  float factor(const Values& m, std::size_t i, std::size_t j) const {
    return rounded(rounding_, m[i * n_ + j]);
  }

  void invert_block(std::size_t from) {
    const std::size_t rows = std::min(side_, n_ - from);
    Values block(rows * rows, 0.0f);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < i; ++j) block[i * rows + j] = L_[(from + i) * n_ + from + j];
    const Values x = doubling(block, rows, rounding_);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j <= i; ++j) x_[(from + i) * n_ + from + j] = x[i * rows + j];
  }

  /// One column of the rows of a block, left of it.
  void fill_below(std::size_t from, std::size_t column) {
    const std::size_t to = std::min(from + side_, n_);
    Wide sum(to - from, 0.0);
    for (std::size_t i = from; i < to; ++i) {
      for (std::size_t m = column; m < from; ++m)
        sum[i - from] += static_cast<double>(factor(L_, i, m)) * static_cast<double>(factor(x_, m, column));
      sum[i - from] = through(rounding_, sum[i - from]);
    }
    for (std::size_t i = from; i < to; ++i) {
      double product = 0;
      for (std::size_t m = from; m <= i; ++m)
        product += static_cast<double>(factor(x_, i, m)) * sum[m - from];
      x_[i * n_ + column] = static_cast<float>(-product);
    }
  }

  std::size_t n_, side_;
  Rounding rounding_;
  Values L_, x_;
};

/// Products of rows [n][columns] with the inverse, rounded.
Wide times(const Wide& inverse, const Wide& rows, std::size_t n, std::size_t columns, Rounding rounding) {
  Wide result(n * columns, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j)
      for (std::size_t c = 0; c < columns; ++c)
        result[i * columns + c] += inverse[i * n + j] * rows[j * columns + c];
    for (std::size_t c = 0; c < columns; ++c)
      result[i * columns + c] = through(rounding, result[i * columns + c]);
  }
  return result;
}

bool is_finite(const Wide& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace

/// v_new = (I + L)^-1 beta (v - k exp(G) S), solved row by row: where doubling is harmless.
std::vector<double> DivergenceProbe::harmless_values(const ProbeChunk& chunk) const {
  const std::size_t n = chunk.rows;
  Wide v_new(chunk.v, chunk.v + n * columns_);
  for (std::size_t i = 0; i < n; ++i) {
    double* const row = v_new.data() + i * columns_;
    for (std::size_t k = 0; k < chunk.key_dim; ++k) {
      const std::size_t at = i * chunk.stride + k;
      const double key = chunk.read[at] * numeric::exp(chunk.G[at]);
      for (std::size_t c = 0; c < columns_; ++c) row[c] -= key * state_[k * columns_ + c];
    }
    for (std::size_t c = 0; c < columns_; ++c) row[c] *= chunk.beta[i];
    for (std::size_t j = 0; j < i; ++j)
      for (std::size_t c = 0; c < columns_; ++c) row[c] -= (*chunk.L)[i * n + j] * v_new[j * columns_ + c];
  }
  return v_new;
}

/// v_new = A (beta v) - (A (beta k exp(G))) S, every stage rounded.
std::vector<double> DivergenceProbe::rounded_values(const ProbeChunk& chunk) const {
  const std::size_t n = chunk.rows, K = chunk.key_dim;
  Wide inverse = BlockInverse(*chunk.L, n, side_, casts_).result();
  for (double& entry : inverse) entry = through(casts_.Akk_inv, entry);
  Wide values(n * columns_), keys(n * K), h(state_), predicted(columns_);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t c = 0; c < columns_; ++c)
      values[i * columns_ + c] = through(casts_.operands, chunk.beta[i] * chunk.v[i * columns_ + c]);
    for (std::size_t k = 0; k < K; ++k) {
      const std::size_t at = i * chunk.stride + k;
      const double key = through(casts_.beta_key, chunk.beta[i] * chunk.read[at]);
      keys[i * K + k] = through(casts_.operands, key * numeric::exp(chunk.G[at]));
    }
  }
  for (double& entry : h) entry = through(casts_.state, entry);
  Wide v_new = times(inverse, values, n, columns_, casts_.u);
  const Wide w = times(inverse, keys, n, K, casts_.w);
  for (std::size_t i = 0; i < n; ++i) {
    std::fill(predicted.begin(), predicted.end(), 0.0);
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t c = 0; c < columns_; ++c) predicted[c] += w[i * K + k] * h[k * columns_ + c];
    for (std::size_t c = 0; c < columns_; ++c) {
      double& value = v_new[i * columns_ + c];
      value = through(casts_.v_new, value - through(casts_.prediction, predicted[c]));
    }
  }
  return v_new;
}

/// Token by token, as o_i = q_i S_i needs no scores. False where an output is not finite.
bool DivergenceProbe::advance(const ProbeChunk& chunk, const Wide& v_new) {
  bool good = true;
  Wide o(columns_);
  for (std::size_t i = 0; i < chunk.rows; ++i) {
    std::fill(o.begin(), o.end(), 0.0);
    for (std::size_t k = 0; k < chunk.key_dim; ++k) {
      const std::size_t at = i * chunk.stride + k;
      const double decay = numeric::exp(i == 0 ? chunk.G[at] : chunk.G[at] - chunk.G[at - chunk.stride]);
      for (std::size_t c = 0; c < columns_; ++c) {
        double& state = state_[k * columns_ + c];
        state = state * decay + chunk.k[at] * v_new[i * columns_ + c];
        o[c] += chunk.q[at] * state;
      }
    }
    for (const double output : o) good = good && std::isfinite(through(output_, output));
  }
  for (double& entry : state_) entry = through(casts_.carry, entry);
  return good;
}

void DivergenceProbe::add(const ProbeChunk& chunk, double amplification) {
  constexpr double harmless = 1e-3;
  if (overflow_) return;
  const bool is_harmless = amplification * unit_roundoff(casts_.inverse_operands) < harmless;
  const Wide v_new = is_harmless ? harmless_values(chunk) : rounded_values(chunk);
  const bool good = advance(chunk, v_new);
  if (!good || !is_finite(v_new) || !is_finite(state_)) overflow_ = chunk.at;
}

}  // namespace kda_check::explain

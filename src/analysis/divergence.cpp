#include "analysis/divergence.hpp"
#include "kda/rounded.hpp"

#include <algorithm>
#include <cmath>

namespace kda_check::analysis {

namespace {

using kda::rounded;
using kda::Rounding;
using Matrix = std::vector<float>;

Matrix rounded(Rounding rounding, Matrix m) {
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
Matrix product(const Matrix& a, const Matrix& b, std::size_t n, Rounding rounding,
               const Matrix* start = nullptr) {
  Matrix sum(n * n, 0.0f);
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
Matrix doubling(const Matrix& L, std::size_t n, Rounding rounding) {
  Matrix power = rounded(rounding, L), x(n * n);
  for (std::size_t e = 0; e < n * n; ++e) x[e] = -power[e];
  for (std::size_t i = 0; i < n; ++i) x[i * n + i] = 1;
  for (std::size_t p = 2; p < n; p *= 2) {
    power = product(power, power, n, rounding);
    x = product(x, power, n, rounding, &x);
  }
  return x;
}

}  // namespace

/// Diagonal blocks by doubling, what is below them by X_i = -X_ii sum_m L_im X_m; exact where doubling is
/// harmless.
std::vector<double> DivergenceProbe::inverse_of(const ProbeChunk& chunk, double amplification) const {
  constexpr double harmless = 1e-3;
  const bool is_exact = amplification * unit_roundoff(operands_) < harmless;
  const std::size_t n = chunk.rows, side = is_exact ? 1 : side_;
  const std::vector<double>& L = *chunk.L;
  std::vector<double> A(n * n, 0.0), sum;
  for (std::size_t from = 0; from < n; from += side) {
    const std::size_t rows = std::min(side, n - from);
    Matrix block(rows * rows);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < i; ++j)
        block[i * rows + j] = static_cast<float>(L[(from + i) * n + from + j]);
    const Matrix x = doubling(block, rows, operands_);
    sum.assign(rows * n, 0.0);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t m = 0; m < from; ++m)
        for (std::size_t j = 0; j <= m; ++j) sum[i * n + j] += L[(from + i) * n + m] * A[m * n + j];
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t m = 0; m <= i; ++m) {
        const auto factor = static_cast<double>(x[i * rows + m]);
        for (std::size_t j = 0; j < from; ++j) A[(from + i) * n + j] -= factor * sum[m * n + j];
        A[(from + i) * n + from + m] = factor;
      }
  }
  return A;
}

void DivergenceProbe::add(const ProbeChunk& chunk, double amplification) {
  if (overflow_) return;
  const std::size_t n = chunk.rows, K = chunk.key_dim;
  const std::vector<double> A = inverse_of(chunk, amplification);
  std::vector<double> residual(n), written(n, 0.0);
  const auto G = [&](std::size_t i, std::size_t k) { return chunk.G[i * chunk.stride + k]; };
  for (std::size_t i = 0; i < n; ++i) {
    double predicted = 0;
    for (std::size_t k = 0; k < K; ++k)
      predicted += chunk.k[i * chunk.stride + k] * std::exp(G(i, k)) * state_[k];
    residual[i] = chunk.beta[i] * (chunk.v[i] - predicted);
  }
  double largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j)
      written[i] += A[i * n + j] * residual[j];  // v_new = A (beta v - ...)
    largest = std::max(largest, std::fabs(written[i]));
  }
  for (std::size_t k = 0; k < K; ++k) {
    state_[k] *= std::exp(G(n - 1, k));
    for (std::size_t i = 0; i < n; ++i)
      state_[k] += chunk.k[i * chunk.stride + k] * std::exp(G(n - 1, k) - G(i, k)) * written[i];
    largest = std::max(largest, std::fabs(state_[k]));
    if (std::isnan(state_[k])) largest = HUGE_VAL;
  }
  if (!(largest <= 0x1.fffffep127)) overflow_ = chunk.at;
}

}  // namespace kda_check::analysis

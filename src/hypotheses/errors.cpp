#include "hypotheses/errors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kda/problem/passes.hpp"
#include "kda/problem/shapes.hpp"
#include "kda/truth/places.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::hypotheses {

HeldOracle hold_oracle(const kda::Problem& problem, const kda::OracleOptions& options, int threads) {
  HeldOracle held;
  for (const std::string& name : kda::tensors_of(kda::Pass::forward, problem)) {
    const std::size_t size = tensor::element_count(kda::shape_of(name, problem));
    held[name].hi.resize(size), held[name].lo.resize(size);
  }
  const auto keep = [&held](const kda::OraclePart& part) {
    ExactValues& values = held.find(part.tensor)->second;
    std::copy_n(part.hi, part.count, values.hi.data() + part.first);
    std::copy_n(part.lo, part.count, values.lo.data() + part.first);
  };
  kda::run_oracle(problem, options, threads, kda::by_places(problem.dimensions(), keep, keep));
  return held;
}

HeldOracle hold_gradient_oracle(const kda::Problem& problem, const kda::OracleOptions& options,
                                std::size_t chunk_size, int threads) {
  kda::GradientTruths truths = kda::run_gradient_oracle(problem, options, chunk_size, threads);
  HeldOracle held;
  for (const kda::GradientRow& row : kda::gradients()) {
    if (!kda::has_gradient(problem, row.gradient)) continue;
    kda::GradientTruth& truth = truths[static_cast<std::size_t>(row.gradient)];
    held.emplace(row.name, ExactValues{std::move(truth.hi), std::move(truth.lo)});
  }
  return held;
}

Differences difference(const tensor::Tensor& got, const ExactValues& exact) {
  Differences result(got.size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = (got.value(i) - exact.hi[i]) - exact.lo[i];
  return result;
}

Differences difference(const tensor::Tensor& got, const tensor::Tensor& expected) {
  Differences result(got.size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = got.value(i) - expected.value(i);
  return result;
}

Differences values(const tensor::Tensor& tensor) {
  Differences result(tensor.size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = tensor.value(i);
  return result;
}

double share(const Differences& part, const Differences& whole) {
  numeric::ProductSum product, square;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    product.add(part[i], whole[i]);
    square.add_square(whole[i]);
  }
  return square.is_zero() ? 0 : quotient(product, square);
}

double rms(std::span<const double> values) {
  numeric::ProductSum square;
  for (const double value : values) square.add_square(value);
  return square.root_mean(values.size());
}

double rms(const ExactValues& exact) { return rms(std::span<const double>(exact.hi)); }

std::size_t differing_bits(const tensor::Tensor& a, const tensor::Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return a.size();
  const std::size_t bytes = numeric::format_of(a.dtype()).bytes;
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += std::memcmp(a.at(i), b.at(i), bytes) != 0;
  return count;
}

}  // namespace kda_check::hypotheses

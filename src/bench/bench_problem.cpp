#include <cmath>

#include "bench/bench.hpp"

namespace kda_check::bench {

namespace {

/// Counter-based: element i of stream s is the same whatever else is drawn (splitmix64, G. Steele et al.
/// 2014).
double uniform(std::uint64_t stream, std::uint64_t i) {
  std::uint64_t x = stream * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

tensor::Tensor filled(const char* name, numeric::DType dtype, tensor::Shape shape, std::uint64_t stream,
                      double from, double to) {
  tensor::Tensor result(name, dtype, std::move(shape));
  for (std::size_t i = 0; i < result.size(); ++i) result.set(i, from + (to - from) * uniform(stream, i));
  return result;
}

}  // namespace

kda::Problem bench_problem(const BenchRequest& r, numeric::DType dtype, bool with_loss) {
  using tensor::Shape;
  kda::Problem problem;
  const double unit = std::sqrt(3.0 / static_cast<double>(r.K));
  problem.q = filled("q", dtype, Shape{r.B, r.T, r.H, r.K}, 1, -unit, unit);
  problem.k = filled("k", dtype, Shape{r.B, r.T, r.H, r.K}, 2, -unit, unit);
  problem.v = filled("v", dtype, Shape{r.B, r.T, r.H, r.V}, 3, -1.7, 1.7);
  const numeric::DType gate_dtype = dtype == numeric::DType::fp64 ? dtype : numeric::DType::fp32;
  problem.g = filled("g", gate_dtype, Shape{r.B, r.T, r.H, r.K}, 4, -0.2, 0);
  problem.beta = filled("beta", gate_dtype, Shape{r.B, r.T, r.H}, 5, 0.1, 0.9);
  if (with_loss) {
    const numeric::DType state_dtype = kda::state_dtype(dtype);
    problem.output_gradient = filled("do", dtype, Shape{r.B, r.T, r.H, r.V}, 6, -1.7, 1.7);
    problem.state_gradient = filled("dht", state_dtype, Shape{r.B, r.H, r.K, r.V}, 7, -1.7, 1.7);
  }
  problem.options.chunk_size = static_cast<int>(r.chunk_size);
  problem.options.safe_gate = true;
  problem.validate();
  return problem;
}

}  // namespace kda_check::bench

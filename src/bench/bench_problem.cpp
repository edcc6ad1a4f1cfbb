#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "bench/bench.hpp"
#include "kda/pool/pool.hpp"
#include "kda/problem/shapes.hpp"

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

/// Its sequences as rows of a call on a pool.
kda::Problem step_of_decoding(kda::Problem tokens) {
  const kda::Dimensions& d = tokens.dimensions();
  std::vector<std::int64_t> slots(d.N + d.N / 4);
  std::iota(slots.begin(), slots.end(), 0);
  std::ranges::sort(slots, {}, [](std::int64_t slot) { return uniform(11, static_cast<std::size_t>(slot)); });
  tensor::Shape shape = kda::shape_of("final_state", tokens);
  shape[0] = slots.size();
  slots.resize(d.N);
  kda::PoolCall call;
  call.states = filled("state_pool", kda::state_dtype(tokens.dtype()), std::move(shape), 10, -1, 1);
  call.table.indices = std::move(slots);
  call.problem = std::move(tokens);
  return kda::ordinary_form(std::move(call));
}

}  // namespace

kda::Problem bench_problem(const BenchRequest& r, numeric::DType dtype, bool with_loss) {
  using tensor::Shape;
  kda::Problem problem;
  kda::Options& options = problem.options;
  const double size = r.layer ? 1.7 : std::sqrt(3.0 / static_cast<double>(r.K));
  problem.q = filled("q", dtype, Shape{r.B, r.T, r.H, r.K}, 1, -size, size);
  problem.k = filled("k", dtype, Shape{r.B, r.T, r.H, r.K}, 2, -size, size);
  problem.v = filled("v", dtype, Shape{r.B, r.T, r.H, r.V}, 3, -1.7, 1.7);
  const numeric::DType parameters = kda::state_dtype(dtype);
  if (r.layer) {
    options.qk_l2norm = options.beta_sigmoid = options.state_v_first = true;
    options.gate = kda::Gate::lower_bound, options.lower_bound = -5;
    problem.g = filled("g", dtype, Shape{r.B, r.T, r.H, r.K}, 4, -1.7, 1.7);
    problem.beta = filled("beta", dtype, Shape{r.B, r.T, r.H}, 5, -1.7, 1.7);
    problem.A_log = filled("A_log", parameters, Shape{r.H}, 8, 0, 0.5);
    problem.dt_bias = filled("dt_bias", parameters, Shape{r.H * r.K}, 9, -6, -2);
  } else {
    problem.g = filled("g", parameters, Shape{r.B, r.T, r.H, r.K}, 4, -0.2, 0);
    problem.beta = filled("beta", parameters, Shape{r.B, r.T, r.H}, 5, 0.1, 0.9);
  }
  if (r.sequences > 1 || r.decode > 0)
    for (std::size_t i = 0; i <= r.sequences; ++i)
      problem.cu_seqlens.push_back(static_cast<std::int64_t>(i * r.T / r.sequences));
  if (with_loss) {
    const std::size_t states = r.sequences > 1 ? r.sequences : r.B;
    problem.output_gradient = filled("do", dtype, Shape{r.B, r.T, r.H, r.V}, 6, -1.7, 1.7);
    const Shape shape = r.layer ? Shape{states, r.H, r.V, r.K} : Shape{states, r.H, r.K, r.V};
    problem.state_gradient = filled("dht", parameters, shape, 7, -1.7, 1.7);
  }
  options.chunk_size = static_cast<int>(r.chunk_size);
  options.safe_gate = true;
  problem.validate();
  if (r.decode > 0) return step_of_decoding(std::move(problem));
  return problem;
}

void check_sequences(const BenchRequest& r) {
  if (r.decode > 0 && (r.B > 1 || r.sequences > 1 || r.words.selection.pass == kda::Pass::backward))
    throw Error(ErrorKind::usage, "--decode has no -B, --sequences or --backward", {},
                "it is one token for each of as many sequences, forwards");
  if (r.sequences > 1 && (r.B > 1 || r.sequences > r.T))
    throw Error(ErrorKind::usage, "--sequences: packed sequences have -B 1, and a token each at least");
}

std::size_t least_traffic(const kda::Problem& problem, numeric::DType dtype) {
  std::size_t bytes = 0;
  for (const tensor::Tensor* const tensor : {&problem.q, &problem.k, &problem.v, &problem.g, &problem.beta})
    bytes += tensor->bytes();
  for (const auto* const tensor : {&problem.A_log, &problem.dt_bias, &problem.initial_state})
    if (*tensor) bytes += (*tensor)->bytes();
  const auto result_bytes = [&](std::string_view name, numeric::DType stored) {
    return tensor::element_count(kda::shape_of(name, problem)) * numeric::format_of(stored).bytes;
  };
  return bytes + result_bytes("o", dtype) + result_bytes("final_state", kda::state_dtype(dtype));
}

}  // namespace kda_check::bench

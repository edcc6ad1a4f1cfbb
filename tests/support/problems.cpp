#include "support/problems.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "numeric/ulp.hpp"
#include "support/random.hpp"

namespace kda_check::test {

namespace {

using numeric::DType;
using tensor::Shape;
using tensor::Tensor;

template <class Draw>
Tensor filled(const char* name, DType dtype, Shape shape, Draw draw) {
  Tensor tensor(name, dtype, std::move(shape));
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, draw(i));
  return tensor;
}

}  // namespace

ProblemSpec spec_with_options(kda::Gate gate, int options) {
  ProblemSpec spec;
  spec.gate = gate, spec.K = 40, spec.V = 36, spec.H = 2, spec.HV = 4;
  spec.qk_l2norm = options & 1, spec.beta_sigmoid = options & 2, spec.state_v_first = options & 4;
  spec.dt_bias = options & 16, spec.A_log = gate == kda::Gate::softplus || (options & 32);
  spec.allow_neg_eigval = spec.beta_sigmoid && (options & 16);
  return spec;
}

std::vector<ProblemSpec> few_specs() {
  ProblemSpec plain;
  plain.T = 75, plain.H = 2, plain.HV = 4, plain.K = 40, plain.V = 21;
  ProblemSpec bounded = plain, softplus = plain;
  bounded.qk_l2norm = bounded.beta_sigmoid = bounded.state_v_first = true;
  bounded.gate = kda::Gate::lower_bound;
  softplus.beta_sigmoid = softplus.allow_neg_eigval = softplus.qk_l2norm = true;
  softplus.gate = kda::Gate::softplus, softplus.initial_state = false;
  return {plain, bounded, softplus};
}

ProblemSpec packed_spec() {
  ProblemSpec spec;
  spec.K = 64, spec.V = 64, spec.H = 2, spec.HV = 2, spec.T = 300;
  spec.cu_seqlens = {0, 0, 1, 17, 17, 80, 144, 145, 300, 300};
  return spec;
}

kda::Problem make_problem(const ProblemSpec& s, std::uint64_t seed) {
  Random random(seed);
  const double unit = 1 / std::sqrt(static_cast<double>(s.K));
  const DType parameter = s.dtype == DType::fp64 ? DType::fp64 : DType::fp32;
  kda::Problem problem;
  problem.q = filled("q", s.dtype, {s.B, s.T, s.H, s.K}, [&](std::size_t) { return random.normal() * unit; });
  problem.k = filled("k", s.dtype, {s.B, s.T, s.H, s.K}, [&](std::size_t) { return random.normal() * unit; });
  problem.v = filled("v", s.dtype, {s.B, s.T, s.HV, s.V}, [&](std::size_t) { return random.normal(); });
  const bool raw = s.gate != kda::Gate::none;
  const Shape of_decays = s.scalar_decay ? Shape{s.B, s.T, s.HV} : Shape{s.B, s.T, s.HV, s.K};
  problem.g = filled("g", parameter, of_decays, [&](std::size_t) {
    return raw ? 2 * random.normal() : -s.gate_size * random.uniform();
  });
  const auto strengths = [&](const char* name, Shape shape) {
    return filled(name, parameter, std::move(shape),
                  [&](std::size_t) { return s.beta_sigmoid ? random.normal() : random.uniform(); });
  };
  if (s.strength == kda::Strength::gates) {
    problem.erase = strengths("erase", {s.B, s.T, s.HV, s.K});
    problem.write = strengths("write", {s.B, s.T, s.HV, s.V});
  } else {
    problem.beta = strengths(
        "beta", s.strength == kda::Strength::value ? Shape{s.B, s.T, s.HV, s.V} : Shape{s.B, s.T, s.HV});
  }
  if (raw && s.A_log)
    problem.A_log = filled("A_log", DType::fp32, {s.HV}, [&](std::size_t) { return random.uniform(-1, 1); });
  if (raw && s.dt_bias)
    problem.dt_bias = filled("dt_bias", DType::fp32, {s.HV * (s.scalar_decay ? 1 : s.K)},
                             [&](std::size_t) { return random.normal() - 1; });
  problem.options.gate = s.gate;
  if (s.gate == kda::Gate::lower_bound) problem.options.lower_bound = -5.0;
  problem.options.scale = 0.3;
  problem.options.chunk_size = s.chunk_size;
  problem.options.qk_l2norm = s.qk_l2norm;
  problem.options.beta_sigmoid = s.beta_sigmoid;
  problem.options.allow_neg_eigval = s.allow_neg_eigval;
  problem.options.state_v_first = s.state_v_first;
  problem.options.safe_gate = s.safe_gate;
  problem.cu_seqlens = s.cu_seqlens;
  if (s.initial_state) {
    const std::size_t N = s.cu_seqlens.empty() ? s.B : s.cu_seqlens.size() - 1;
    const Shape shape = s.state_v_first ? Shape{N, s.HV, s.V, s.K} : Shape{N, s.HV, s.K, s.V};
    problem.initial_state =
        filled("initial_state", parameter, shape, [&](std::size_t) { return random.normal(); });
  }
  problem.validate();
  return problem;
}

kda::Problem exact_problem(std::size_t T, std::size_t K, std::size_t V, DType dtype, int chunk_size) {
  Random random(7);
  const auto small_integer = [&] { return 16.0 * (static_cast<double>(random.below(9)) - 4); };
  kda::Problem problem;
  const DType parameter = dtype == DType::fp64 ? DType::fp64 : DType::fp32;
  problem.q = filled("q", dtype, {1, T, 1, K},
                     [&](std::size_t i) { return i % K == (11 * (i / K) + 5) % K ? 1.0 : 0.0; });
  problem.k =
      filled("k", dtype, {1, T, 1, K}, [&](std::size_t i) { return i % K == 37 * (i / K) % K ? 1.0 : 0.0; });
  problem.v = filled("v", dtype, {1, T, 1, V}, [&](std::size_t) { return small_integer(); });
  problem.g = filled("g", parameter, {1, T, 1, K}, [](std::size_t) { return 0.0; });
  problem.beta = filled("beta", parameter, {1, T, 1}, [](std::size_t t) { return t % 3 == 0 ? 1.0 : 0.5; });
  problem.initial_state =
      filled("initial_state", parameter, {1, 1, K, V}, [&](std::size_t) { return small_integer(); });
  problem.options.scale = 1.0;
  problem.options.chunk_size = chunk_size;
  problem.validate();
  return problem;
}

std::vector<kda::Variant> cpu_variants() {
  std::vector<kda::Variant> list;
  for (const kda::Variant& variant : kda::variants())
    if (variant.replay.empty()) list.push_back(variant);
  return list;
}

kda::Variant forward_only() {
  kda::Variant variant = kda::variant_named("naive");
  variant.name = "forwards", variant.run_backward = nullptr;
  return variant;
}

kda::RunOptions default_options(const kda::Problem& problem, std::string_view variant, DType dtype,
                                std::initializer_list<std::string_view> words) {
  kda::RunOptions options;
  options.dtype = dtype;
  options.arithmetic = kda::variant_named(variant).default_arithmetic(problem, dtype);
  options.chunk_size = static_cast<std::size_t>(problem.options.chunk_size);
  for (const std::string_view word : words) kda::set_axis(options.arithmetic, word);
  return options;
}

kda::Answer run(const kda::Problem& problem, std::string_view variant, const kda::RunOptions& options) {
  return kda::variant_named(variant).run(problem, options);
}

kda::Answer run(const kda::Problem& problem, std::string_view variant, DType dtype, int threads) {
  kda::RunOptions options = default_options(problem, variant, dtype);
  options.threads = threads;
  return run(problem, variant, options);
}

WholeOracle whole_oracle(const kda::Problem& problem, int threads, kda::OraclePrecision precision) {
  const kda::Dimensions& d = problem.dimensions();
  WholeOracle whole;
  whole.o.resize(d.B * d.T * d.HV * d.V);
  whole.o_magnitude.resize(whole.o.size());
  whole.final_state.resize(d.N * d.HV * d.K * d.V);
  whole.state_magnitude.resize(whole.final_state.size());
  kda::OracleSink sink;
  sink.output = [&](const kda::OracleOutput& block) {
    const std::size_t row = d.HV * d.V, first = (block.batch * d.T + block.begin) * row;
    for (std::size_t i = 0; i < block.count * row; ++i) {
      whole.o[first + i] = {block.hi[i], block.lo[i]};
      whole.o_magnitude[first + i] = block.magnitude[i];
    }
  };
  sink.state = [&](const kda::OracleState& state) {
    const std::size_t size = d.K * d.V, first = (state.row * d.HV + state.head) * size;
    for (std::size_t i = 0; i < size; ++i) {
      whole.final_state[first + i] = {state.hi[i], state.lo[i]};
      whole.state_magnitude[first + i] = state.magnitude[i];
    }
  };
  sink.error = [&](double error) { whole.error = error; };
  kda::run_oracle(problem, precision, threads, sink);
  return whole;
}

std::size_t differing_bits(const Tensor& a, const Tensor& b) {
  const std::size_t width = numeric::format_of(a.dtype()).bytes;
  std::size_t count = a.dtype() != b.dtype() || a.size() != b.size() ? a.size() + b.size() : 0;
  for (std::size_t i = 0; count == 0 && i < a.size(); ++i) count += std::memcmp(a.at(i), b.at(i), width) != 0;
  return count;
}

double rms_ratio(const Tensor& got, const std::vector<numeric::DoubleDouble>& exact) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double apart = numeric::distance(got.value(i), exact[i]);
    difference += apart * apart;
    size += exact[i].hi * exact[i].hi;
  }
  return std::sqrt(difference / size);
}

double max_scaled_ulp(const Tensor& got, const std::vector<numeric::DoubleDouble>& exact,
                      std::span<const double> magnitude) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst = std::max(
        worst, numeric::scaled_ulp(numeric::format_of(got.dtype()), got.value(i), exact[i], magnitude[i]));
  return worst;
}

std::string large_fixtures() {
  const char* const set = std::getenv("KDA_CHECK_FIXTURES");
  const std::filesystem::path path =
      set != nullptr ? std::filesystem::path(set)
                     : std::filesystem::path(KDA_CHECK_SOURCE_DIR) / ".." / "shared" / "fixtures";
  return std::filesystem::is_directory(path) ? path.string() : std::string();
}

std::vector<std::string> large_fixture_files() {
  std::vector<std::string> files;
  if (const std::string folder = large_fixtures(); !folder.empty())
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".h5") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

std::string case_fixtures() {
  return (std::filesystem::path(KDA_CHECK_SOURCE_DIR) / "cases" / "fixtures").string();
}

std::vector<std::string> all_fixture_files() {
  std::vector<std::string> files = large_fixture_files();
  for (const auto& entry : std::filesystem::directory_iterator(case_fixtures()))
    if (entry.path().extension() == ".h5") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kda_check::test

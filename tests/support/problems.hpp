// Problems for tests, of any shape and with any option.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kda/problem/problem.hpp"
#include "kda/truth/oracle.hpp"
#include "kda/variants/variants.hpp"
#include "numeric/double_double.hpp"

namespace kda_check::test {

struct ProblemSpec {
  std::size_t B = 1, T = 20, H = 1, HV = 1, K = 8, V = 6;
  numeric::DType dtype = numeric::DType::fp32;
  kda::Gate gate = kda::Gate::none;
  bool qk_l2norm = false, beta_sigmoid = false, allow_neg_eigval = false, state_v_first = false,
       safe_gate = false;
  bool A_log = true, dt_bias = true;  ///< where the gate reads them
  bool initial_state = true;
  double gate_size = 0.3;  ///< log decays are uniform in [-gate_size, 0] when gate is none
  int chunk_size = 64;
  std::vector<std::int64_t> cu_seqlens = {};
  bool scalar_decay = false;
  kda::Strength strength = kda::Strength::head;
};

/// The options that every kernel has, by the bits of `options` but for 8, at an odd shape of grouped heads.
ProblemSpec spec_with_options(kda::Gate gate, int options);
/// Three of grouped heads at an odd shape, which have every option between them.
std::vector<ProblemSpec> few_specs();
/// 300 tokens, of which some sequences have none, one, or as many as a chunk.
ProblemSpec packed_spec();

/// Random inputs, reproducible from the seed. Keys have norm about 1.
kda::Problem make_problem(const ProblemSpec& spec, std::uint64_t seed = 1);

/// A problem whose every sum is exact in any format and any order: one-hot keys and queries, no decay, small
/// integers (docs/scenarios.md, onehot_exact).
kda::Problem exact_problem(std::size_t T, std::size_t K, std::size_t V, numeric::DType dtype,
                           int chunk_size = 64);

/// Runs a variant with its default arithmetic, or the one given.
kda::Answer run(const kda::Problem& problem, std::string_view variant, numeric::DType dtype, int threads = 1);
kda::Answer run(const kda::Problem& problem, std::string_view variant, const kda::RunOptions& options);
/// The variants that run on any machine.
std::vector<kda::Variant> cpu_variants();
/// One that has no backward pass: `naive` as "forwards".
kda::Variant forward_only();

/// With these settings besides.
kda::RunOptions default_options(const kda::Problem& problem, std::string_view variant, numeric::DType dtype,
                                std::initializer_list<std::string_view> words = {});

/// The oracle's answer, held whole, in the layout of the tensors.
struct WholeOracle {
  std::vector<numeric::DoubleDouble> o, final_state;
  std::vector<double> o_magnitude, state_magnitude;
  double error = 0;  ///< that fp64 states: over magnitudes, at most
};
WholeOracle whole_oracle(const kda::Problem& problem, int threads = 1,
                         kda::OraclePrecision precision = kda::OraclePrecision::double_double);

/// Elements that differ in their bits.
std::size_t differing_bits(const tensor::Tensor& a, const tensor::Tensor& b);

/// rms(got - exact) / rms(exact), and the largest error in units of the last place of the magnitude.
double rms_ratio(const tensor::Tensor& got, const std::vector<numeric::DoubleDouble>& exact);
double max_scaled_ulp(const tensor::Tensor& got, const std::vector<numeric::DoubleDouble>& exact,
                      std::span<const double> magnitude);

/// The folder of the large fixtures, or empty: ../shared/fixtures beside the source tree, or
/// KDA_CHECK_FIXTURES.
std::string large_fixtures();
/// Files in it, in order of name.
std::vector<std::string> large_fixture_files();

/// The folder of the fixtures committed with the program.
std::string case_fixtures();
/// Those, and the large ones where they are.
std::vector<std::string> all_fixture_files();

}  // namespace kda_check::test

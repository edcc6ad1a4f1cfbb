// Kernels that decode, of vLLM, SGLang and llama.cpp: their presets against what the kernels do, element by
// element, whatever the inputs. Recorded answers are in tests/engine/captures.cpp.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "kda/arithmetic/gpu_words.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/arithmetic/row_layout.hpp"
#include "numeric/h100.hpp"
#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"

namespace decode_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

namespace h100 = numeric::h100;

constexpr float log2_e = 0x1.715476p+0F;

float value(const tensor::Tensor& tensor, std::size_t element) {
  return static_cast<float>(tensor.value(element));
}

/// One head, V first, one value column after the other: what a kernel keeps, and what it answers.
struct Decoder {
  const Problem& problem;
  const Dimensions& d = problem.dimensions();
  std::vector<float> state, o;  ///< [V][K], [T][V]

  explicit Decoder(const Problem& given) : problem(given), state(d.V * d.K), o(d.T * d.V) {
    for (std::size_t e = 0; e < state.size(); ++e) state[e] = value(*problem.initial_state, e);
  }
  std::vector<float> row(const tensor::Tensor& tensor, std::size_t t) const {
    std::vector<float> values(d.K);
    for (std::size_t k = 0; k < d.K; ++k) values[k] = value(tensor, t * d.K + k);
    return values;
  }
  std::size_t differing(const Answer& answer) const {
    std::size_t count = 0;
    for (std::size_t e = 0; e < o.size(); ++e) count += value(answer.o, e) != o[e];
    for (std::size_t e = 0; e < state.size(); ++e) count += value(answer.final_state, e) != state[e];
    return count;
  }
};

/// a b over a warp: `run` neighbours a lane and again from the first lane on, the second product rounded and
/// the first fused onto it; then the other lane's sum, from far to near.
float warp_sum(const std::vector<float>& a, const std::vector<float>& b, std::size_t run, std::size_t lanes) {
  std::vector<float> sums(lanes);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::vector<std::size_t> own;
    for (std::size_t first = lane * run; first < a.size(); first += lanes * run)
      for (std::size_t i = 0; i < run; ++i) own.push_back(first + i);
    float sum = std::fma(a[own[0]], b[own[0]], a[own[1]] * b[own[1]]);
    for (std::size_t i = 2; i < own.size(); ++i) sum = std::fma(a[own[i]], b[own[i]], sum);
    sums[lane] = sum;
  }
  for (std::size_t half = lanes / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

float triton_exp(float x) { return h100::ex2(x * log2_e); }
float triton_sigmoid(float x) { return h100::div_full(1.0F, triton_exp(-x) + 1.0F); }

struct WarpRuns {
  std::size_t norm, norm_lanes, state, state_lanes;
};

/// A program of one warp: tl.sum, tl.log, tl.sigmoid, division and root as Triton 3.6 compiles them.
Decoder one_warp(const Problem& problem, const WarpRuns& runs) {
  Decoder self(problem);
  const Dimensions& d = self.d;
  const float amplitude = triton_exp(value(*problem.A_log, 0));
  for (std::size_t t = 0; t < d.T; ++t) {
    std::vector<float> q = self.row(problem.q, t), k = self.row(problem.k, t), g = self.row(problem.g, t);
    for (std::vector<float>* const x : {&q, &k}) {
      const float root = h100::sqrt_ftz(warp_sum(*x, *x, runs.norm, runs.norm_lanes) + 1e-6F);
      for (float& element : *x) element = h100::div_full(element, root);
    }
    for (std::size_t i = 0; i < d.K; ++i) {
      q[i] *= static_cast<float>(problem.scale());
      const float y = g[i] + value(*problem.dt_bias, i);
      g[i] = problem.options.gate == Gate::lower_bound
                 ? static_cast<float>(*problem.options.lower_bound) * triton_sigmoid(amplitude * y)
                 : -amplitude * (y > 20 ? y : h100::cuda_logf(1.0F + triton_exp(y)));
    }
    const float beta = triton_sigmoid(value(problem.beta, t));
    for (std::size_t v = 0; v < d.V; ++v) {
      std::vector<float> S(self.state.begin() + static_cast<std::ptrdiff_t>(v * d.K),
                           self.state.begin() + static_cast<std::ptrdiff_t>((v + 1) * d.K));
      for (std::size_t i = 0; i < d.K; ++i) S[i] *= triton_exp(g[i]);
      const float e = (value(problem.v, t * d.V + v) - warp_sum(S, k, runs.state, runs.state_lanes)) * beta;
      for (std::size_t i = 0; i < d.K; ++i) S[i] = std::fma(k[i], e, S[i]);
      self.o[t * d.V + v] = warp_sum(S, q, runs.state, runs.state_lanes);
      std::copy(S.begin(), S.end(), self.state.begin() + static_cast<std::ptrdiff_t>(v * d.K));
    }
  }
  return self;
}

/// llama.cpp's warp: lane l has rows l, l + 32, ...; with --use_fast_math. `fuses_decay`: which of the two
/// products of an update nvcc rounds.
Decoder llama(const Problem& problem, bool fuses_decay) {
  Decoder self(problem);
  const Dimensions& d = self.d;
  const auto sum = [&](const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> lanes(std::min<std::size_t>(32, d.K), 0.0F);
    for (std::size_t i = 0; i < d.K; ++i)
      lanes[i % lanes.size()] = std::fma(a[i], b[i], lanes[i % lanes.size()]);
    for (std::size_t half = lanes.size() / 2; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
  };
  for (std::size_t t = 0; t < d.T; ++t) {
    const std::vector<float> q = self.row(problem.q, t), k = self.row(problem.k, t),
                             g = self.row(problem.g, t);
    for (std::size_t v = 0; v < d.V; ++v) {
      std::vector<float> S(self.state.begin() + static_cast<std::ptrdiff_t>(v * d.K),
                           self.state.begin() + static_cast<std::ptrdiff_t>((v + 1) * d.K)),
          decayed(d.K), decay(d.K);
      for (std::size_t i = 0; i < d.K; ++i) {
        decay[i] = h100::ex2_ftz(g[i] * log2_e);
        decayed[i] = decay[i] * S[i];
      }
      const float e = (value(problem.v, t * d.V + v) - sum(decayed, k)) * value(problem.beta, t);
      for (std::size_t i = 0; i < d.K; ++i)
        S[i] = fuses_decay ? std::fma(decay[i], S[i], k[i] * e) : std::fma(k[i], e, decayed[i]);
      self.o[t * d.V + v] = sum(S, q) * static_cast<float>(problem.scale());
      std::copy(S.begin(), S.end(), self.state.begin() + static_cast<std::ptrdiff_t>(v * d.K));
    }
  }
  return self;
}

Answer answer_of(const Problem& problem, std::string_view words) {
  RunOptions options = test::default_options(problem, "recurrent", DType::fp32);
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    set_axis(options.arithmetic, words.substr(begin, end - begin));
    begin = end + 1;
  }
  return test::run(problem, "recurrent", options);
}

test::ProblemSpec spec_of(std::size_t K, std::size_t T) {
  test::ProblemSpec spec;
  spec.T = T, spec.K = K, spec.V = 6, spec.state_v_first = true;
  return spec;
}

}  // namespace

TEST_CASE("vllm-decode and sglang-decode are one warp's sums of Triton, step by step", "[decode]") {
  for (const auto& [K, runs] :
       {std::pair<std::size_t, WarpRuns>{64, {2, 32, 4, 16}}, {128, {4, 32, 4, 32}}, {256, {4, 32, 4, 32}}})
    for (const Gate gate : {Gate::softplus, Gate::lower_bound}) {
      test::ProblemSpec spec = spec_of(K, 20);
      spec.gate = gate, spec.qk_l2norm = spec.beta_sigmoid = true;
      const Problem problem = test::make_problem(spec);
      const Decoder expected = one_warp(problem, runs);
      INFO("K " << K);
      CHECK(expected.differing(answer_of(problem, "sglang-decode")) == 0);
      CHECK(expected.differing(answer_of(problem, "vllm-decode")) == 0);
      // In fp32 so few columns change nothing; four warps add up the norm otherwise.
      CHECK(expected.differing(answer_of(problem, "vllm-decode,launch=block:4x1")) == 0);
      CHECK(expected.differing(answer_of(problem, "vllm-decode,launch=block:32x4")) > 0);
      CHECK((expected.differing(answer_of(problem, "vllm-decode,special=triton")) > 0) ==
            (gate == Gate::softplus));
    }
}

TEST_CASE("a block of a token form has the layouts that Triton's compiler was seen to give it", "[decode]") {
  const DType fp32 = DType::fp32, bf16 = DType::bf16;
  const auto is = [](const RowLayout& layout, std::size_t registers, std::size_t lanes) {
    return layout == RowLayout{registers, lanes, 1};
  };
  CHECK(is(recurrent_state_layout({128, 128, true, &fp32, {8, 1}}), 4, 32));
  CHECK(is(recurrent_state_layout({128, 128, true, &bf16, {4, 1}}), 8, 16));
  CHECK(is(recurrent_state_layout({128, 128, true, &bf16, {32, 1}}), 8, 16));
  CHECK(is(recurrent_state_layout({64, 64, true, &fp32, {8, 1}}), 4, 16));
  CHECK(is(recurrent_norm_layout(128, bf16, {8, 1}), 4, 32));
  CHECK(recurrent_norm_layout(128, bf16, {32, 4}) == RowLayout{1, 32, 4});
}

TEST_CASE("without an initial state a block of a pool loads one of zeros", "[decode]") {
  test::ProblemSpec spec = spec_of(64, 3);
  spec.gate = Gate::softplus, spec.qk_l2norm = spec.beta_sigmoid = true;
  Problem with = test::make_problem(spec);
  for (std::size_t e = 0; e < with.initial_state->size(); ++e) with.initial_state->set(e, 0);
  Problem without = clone(with);
  without.initial_state.reset();
  const Answer a = answer_of(with, "vllm-decode"), b = answer_of(without, "vllm-decode");
  CHECK(test::differing_bits(a.o, b.o) == 0);
  CHECK(test::differing_bits(a.final_state, b.final_state) == 0);
}

TEST_CASE("llama.cpp is a warp for a column, scale behind the sum, step by step", "[decode]") {
  for (const std::size_t K : {16, 32, 64, 128}) {
    INFO("K " << K);
    const Problem problem = test::make_problem(spec_of(K, 5));
    CHECK(llama(problem, true).differing(answer_of(problem, "llama.cpp")) == 0);
    CHECK(llama(problem, false).differing(answer_of(problem, "llama.cpp,update=chained")) == 0);
    CHECK(llama(problem, true).differing(answer_of(problem, "llama.cpp,update=chained")) > 0);
    CHECK(llama(problem, true).differing(answer_of(problem, "llama.cpp,scale=q")) > 0);
  }
}

TEST_CASE("token forms that flush take subnormal numbers of the state for zeros", "[decode]") {
  Problem problem = test::make_problem(spec_of(16, 1));
  for (std::size_t e = 0; e < problem.initial_state->size(); ++e) problem.initial_state->set(e, 1e-39);
  for (std::size_t e = 0; e < problem.v.size(); ++e) problem.v.set(e, 0);
  for (const char* const update : {"chained", "decay-fused"})
    for (const char* const variant : {"recurrent", "naive"}) {
      RunOptions options = test::default_options(problem, variant, DType::fp32);
      set_axis(options.arithmetic, std::string("update=") + update);
      const auto zeros = [&] {
        const Answer answer = test::run(problem, variant, options);
        std::size_t count = 0;
        for (std::size_t e = 0; e < answer.final_state.size(); ++e) count += answer.final_state.value(e) == 0;
        return count;
      };
      CHECK(zeros() == 0);
      set_axis(options.arithmetic, "subnormals=flush");
      CHECK(zeros() == problem.initial_state->size());
    }
}

TEST_CASE("scale behind the output and decay fused onto a write are roundings of every form", "[decode]") {
  test::ProblemSpec spec = spec_of(40, 70);
  spec.chunk_size = 16;
  const Problem problem = test::make_problem(spec);
  const test::WholeOracle exact = test::whole_oracle(problem);
  for (const char* const variant : {"naive", "recurrent", "chunk"})
    for (const char* const word : {"scale=output", "update=decay-fused"}) {
      INFO(variant << ' ' << word);
      RunOptions options = test::default_options(problem, variant, DType::fp32);
      options.arithmetic.contraction = Contraction::fused;
      const Answer before = test::run(problem, variant, options);
      set_axis(options.arithmetic, word);
      const Answer after = test::run(problem, variant, options);
      CHECK(test::differing_bits(before.o, after.o) > 0);
      CHECK(test::rms_ratio(after.o, exact.o) < 3e-6);
      CHECK(test::rms_ratio(after.final_state, exact.final_state) < 3e-6);
    }
}

TEST_CASE("words of the kernels that decode exist on the CPU alone", "[decode]") {
  for (const char* const word : {"scale=output", "update=decay-fused", "special=triton-logf"}) {
    Arithmetic arithmetic;
    set_axis(arithmetic, word);
    CHECK(cpu_only_key(arithmetic, arithmetic.casts) ==
          std::string_view(word).substr(0, std::string_view(word).find('=')));
  }
  Arithmetic arithmetic;
  set_axis(arithmetic, "llama.cpp");
  CHECK_THAT(describe(arithmetic, {}), ContainsSubstring(" scale=output update=decay-fused"));
  set_axis(arithmetic, "flashinfer-decode");
  CHECK_THAT(describe(arithmetic, {}), ContainsSubstring(" scale=norm") && ContainsSubstring(" stored=bf16"));
  set_axis(arithmetic, "launch=block:8x1");
  CHECK_THAT(describe(arithmetic, {}), ContainsSubstring(" launch=block:8x1"));
  for (const char* const wrong : {"block", "block:8", "block:8x1x1", "block:3x1", "block:0x1", "block:256x1"})
    CHECK_THROWS_WITH(set_axis(arithmetic, std::string("launch=") + wrong),
                      ContainsSubstring("--arithmetic launch="));
}

TEST_CASE(
    "lanes-paired adds up the norm in pairs, rows of any length, and a column of the state in two sums a "
    "lane",
    "[decode]") {
  constexpr std::size_t K = 128, columns = 16;
  test::Random random(31);
  const std::vector<float> row = test::numbers<float>(random, K, -1, 1), none(K), ones(K, 1.0F),
                           before = test::numbers<float>(random, K * columns, -1, 1);
  Arithmetic arithmetic;
  set_axis(arithmetic, "special=fast");
  set_axis(arithmetic, "reduction=lanes-paired:25");
  Operations operations = operations_of(arithmetic);
  operations.norm = paired_norm_layout(K), operations.columns = paired_columns_layout(K);
  const auto folded = [](std::vector<float> sums) {
    for (std::size_t half = sums.size() / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
  };

  std::vector<float> normalised = row, of_lanes(32);
  kernels<float>().normalise({1, K, K, normalised.data(), false, operations, 0.25F});
  for (std::size_t lane = 0; lane < of_lanes.size(); ++lane) {
    const float* const x = &row[4 * lane];
    of_lanes[lane] = std::fma(x[0], x[0], x[1] * x[1]) + std::fma(x[2], x[2], x[3] * x[3]);
  }
  const float reciprocal = numeric::h100::rsqrt_ftz(folded(of_lanes) + 1e-6F) * 0.25F;
  for (std::size_t k = 0; k < K; ++k) CHECK(normalised[k] == row[k] * reciprocal);

  // A lane of a long row has more than a thousand pairs.
  constexpr std::size_t long_K = 70001, of_lane = 4096;
  const std::vector<float> long_row = test::numbers<float>(random, long_K, -1, 1);
  normalised = long_row;
  operations.norm = paired_norm_layout(long_K);
  kernels<float>().normalise({1, long_K, long_K, normalised.data(), false, operations});
  for (std::size_t lane = 0; lane < of_lanes.size(); ++lane) {
    std::vector<float> sums;
    for (std::size_t k = lane * of_lane; k < std::min(long_K, (lane + 1) * of_lane); k += 2)
      sums.push_back(k + 1 < long_K ? std::fma(long_row[k], long_row[k], long_row[k + 1] * long_row[k + 1])
                                    : long_row[k] * long_row[k]);
    while (sums.size() > 1) {
      for (std::size_t i = 0; i + 1 < sums.size(); i += 2) sums[i / 2] = sums[i] + sums[i + 1];
      if (sums.size() % 2 == 1) sums[sums.size() / 2] = sums.back();
      sums.resize((sums.size() + 1) / 2);
    }
    of_lanes[lane] = sums.empty() ? 0 : sums[0];
  }
  const float of_long_row = numeric::h100::rsqrt_ftz(folded(of_lanes) + 1e-6F);
  for (std::size_t k = 0; k < long_K; ++k) REQUIRE(normalised[k] == long_row[k] * of_long_row);

  // A key of zeros writes nothing: o is the sum of q S alone.
  const std::vector<float> beta(1), v(columns);
  std::vector<float> state = before, o(columns);
  kernels<float>().token({1,
                          K,
                          columns,
                          columns,
                          row.data(),
                          none.data(),
                          ones.data(),
                          beta.data(),
                          v.data(),
                          o.data(),
                          state.data(),
                          columns,
                          operations,
                          {}});
  for (std::size_t column = 0; column < columns; ++column) {
    std::vector<float> sums(16);
    for (std::size_t lane = 0; lane < sums.size(); ++lane) {
      float even = 0, odd = 0;
      for (std::size_t k = 8 * lane; k < 8 * lane + 8; k += 2) {
        even = std::fma(row[k], before[k * columns + column], even);
        odd = std::fma(row[k + 1], before[(k + 1) * columns + column], odd);
      }
      sums[lane] = even + odd;
    }
    CHECK(o[column] == folded(sums));
  }
}

}  // namespace decode_tests

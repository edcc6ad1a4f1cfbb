// What holds of the GPU variants by themselves, and against the oracle.
#include <algorithm>
#include <cmath>

#include "base/threads/parallel.hpp"
#include "fixture/fixture.hpp"
#include "numeric/h100.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"

namespace laws_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

ProblemSpec rich_spec() {
  ProblemSpec spec;
  spec.B = 3, spec.T = 150, spec.H = 2, spec.HV = 4, spec.K = 64, spec.V = 72;
  spec.qk_l2norm = true, spec.gate = kda::Gate::lower_bound, spec.beta_sigmoid = true, spec.safe_gate = true;
  return spec;
}

/// Rows of `width` elements in another order: row i of the result is row order[i].
void permute(tensor::Tensor& tensor, std::size_t width, const std::vector<std::size_t>& order) {
  const tensor::Tensor old = tensor.clone();
  const std::size_t bytes = width * numeric::format_of(tensor.dtype()).bytes;
  for (std::size_t i = 0; i < order.size(); ++i)
    std::memcpy(tensor.at(i * width), old.at(order[i] * width), bytes);
}

/// Rows of the permuted problem's answers, o and states in so many parts each, are those of the problem's.
void check_permuted(const kda::Problem& problem, kda::Problem& permuted, const std::vector<std::size_t>& rows,
                    const std::vector<std::size_t>& states) {
  permuted.validate();
  for (const std::string_view name : test::gpu_variants) {
    kda::Answer answer = test::run(problem, name, DType::fp32);
    permute(answer.o, answer.o.size() / rows.size(), rows);
    permute(answer.final_state, answer.final_state.size() / states.size(), states);
    CHECK(test::differing(answer, test::run(permuted, name, DType::fp32)) == 0);
  }
}

/// The large fixtures; without them a small one.
std::vector<std::string> fixture_files() {
  const std::vector<std::string> files = test::large_fixture_files();
  return files.empty() ? std::vector{test::case_fixtures() + "/fla_fp32_small.h5"} : files;
}

}  // namespace

TEST_CASE("GPU variants in fp64 are within 1e-12 of the oracle on every fixture", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::string& path : fixture_files()) {
    const kda::Problem problem = fixture::Fixture::open(path).read_problem();
    const test::WholeOracle oracle = test::whole_oracle(problem, 16);
    for (const std::string_view name : test::gpu_variants) {
      const kda::Answer answer = test::run(problem, name, DType::fp64);
      INFO(path << ' ' << name);
      CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-12);
      CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-12);
    }
  }
}

TEST_CASE("gpu-chunk in fp32 is within 32 scaled ULP of the oracle on every fixture", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::string& path : fixture_files()) {
    const kda::Problem problem = fixture::Fixture::open(path).read_problem();
    const test::WholeOracle oracle = test::whole_oracle(problem, 16);
    const kda::Answer answer = test::run(problem, "gpu-chunk", DType::fp32);
    INFO(path);
    CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-6);
    CHECK(test::max_scaled_ulp(answer.o, oracle.o, oracle.o_magnitude) <= 32);
    CHECK(test::max_scaled_ulp(answer.final_state, oracle.final_state, oracle.state_magnitude) <= 32);
  }
}

TEST_CASE("twenty runs give one bit pattern", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  const kda::Problem problem = test::make_problem(rich_spec());
  for (const std::string_view name : test::gpu_variants)
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      const kda::Answer first = test::run(problem, name, dtype);
      for (int again = 1; again < 20; ++again) {
        const kda::Answer other = test::run(problem, name, dtype);
        REQUIRE(test::differing_bits(first.o, other.o) == 0);
        REQUIRE(test::differing_bits(first.final_state, other.final_state) == 0);
      }
    }
}

TEST_CASE("threads that run one kernel with different shapes do not disturb each other", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  std::vector<kda::Problem> problems;
  for (const std::size_t K : {32, 64, 128}) {  // each takes another amount of shared memory
    ProblemSpec spec;
    spec.T = 100, spec.K = K, spec.V = 64;
    problems.push_back(test::make_problem(spec));
  }
  std::vector<kda::Answer> alone;
  for (const kda::Problem& problem : problems) alone.push_back(test::run(problem, "gpu-chunk", DType::fp32));
  std::vector<std::size_t> differing(300, 0);
  parallel_for(differing.size(), 12, [&](std::size_t i, int) {
    const std::size_t which = i % problems.size();
    const kda::Answer together = test::run(problems[which], "gpu-chunk", DType::fp32);
    differing[i] = test::differing_bits(together.o, alone[which].o);
  });
  CHECK(std::ranges::count(differing, 0u) == static_cast<std::ptrdiff_t>(differing.size()));
}

TEST_CASE("permuting batch rows permutes the answer and changes no bit", "[gpu][small]") {
  KDA_CHECK_NEEDS_GPU();
  const ProblemSpec spec = rich_spec();
  const kda::Problem problem = test::make_problem(spec);
  const std::vector<std::size_t> order{2, 0, 1};
  kda::Problem permuted = kda::clone(problem);
  for (tensor::Tensor* const tensor :
       {&permuted.q, &permuted.k, &permuted.v, &permuted.g, &permuted.beta, &*permuted.initial_state})
    permute(*tensor, tensor->size() / spec.B, order);
  check_permuted(problem, permuted, order, order);
}

TEST_CASE("permuting heads permutes the answer and changes no bit", "[gpu][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = rich_spec();
  spec.gate = kda::Gate::none, spec.HV = spec.H = 3, spec.B = 2;
  const kda::Problem problem = test::make_problem(spec);
  const auto order_of = [&](std::size_t groups) {  // heads 2, 0, 1 in every group
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < groups; ++i)
      for (const std::size_t head : {2, 0, 1}) order.push_back(3 * i + head);
    return order;
  };
  const std::size_t tokens = spec.B * spec.T;
  kda::Problem permuted = kda::clone(problem);
  for (tensor::Tensor* const tensor : {&permuted.q, &permuted.k, &permuted.v, &permuted.g, &permuted.beta})
    permute(*tensor, tensor->size() / (3 * tokens), order_of(tokens));
  permute(*permuted.initial_state, spec.K * spec.V, order_of(spec.B));
  check_permuted(problem, permuted, order_of(tokens), order_of(spec.B));
}

TEST_CASE("the exponentials of this device are those of docs/arithmetic.md", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  // A state of ones that nothing is written to, for no key is there, decays to exp(g).
  ProblemSpec spec;
  spec.B = 2048, spec.T = 1, spec.K = 256, spec.V = 1;
  kda::Problem problem = test::make_problem(spec);
  test::Random random(11);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, random.uniform(-110, 88.7));
  for (std::size_t i = 0; i < problem.k.size(); ++i) problem.k.set(i, 0);
  for (std::size_t i = 0; i < problem.initial_state->size(); ++i) problem.initial_state->set(i, 1);
  const std::pair<const char*, float (*)(float)> kinds[] = {
      {"exponential=cuda", numeric::h100::expf}, {"exponential=cuda-fast", numeric::h100::fast_expf}};
  for (const auto& [word, function] : kinds) {
    kda::RunOptions options = test::default_options(problem, "gpu-recurrent", DType::fp32, {word});
    const kda::Answer answer = test::run(problem, "gpu-recurrent", options);
    std::size_t differing = 0;
    for (std::size_t i = 0; i < problem.g.size(); ++i)
      differing += answer.final_state.elements<float>()[i] != function(problem.g.elements<float>()[i]);
    INFO(word);
    CHECK(differing == 0);
  }
}

TEST_CASE("GPU variants agree with all others where every sum is exact", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16})
    for (const int chunk : {16, 32, 64}) {
      const kda::Problem problem = test::exact_problem(256, 64, 24, dtype, chunk);
      const kda::Answer naive = test::run(problem, "naive", dtype);
      for (const std::string_view name : test::gpu_variants) {
        const kda::Answer answer = test::run(problem, name, dtype);
        INFO(name << ' ' << numeric::name_of(dtype) << " chunk " << chunk);
        CHECK(test::differing_bits(naive.o, answer.o) == 0);
        CHECK(test::differing_bits(naive.final_state, answer.final_state) == 0);
      }
    }
}

}  // namespace laws_tests

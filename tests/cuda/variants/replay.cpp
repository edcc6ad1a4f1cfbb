// The GPU variants against their CPU replays: the same bits, whatever the problem.
#include <cmath>

#include "kda/pool/pool.hpp"
#include "kda/variants/decoding.hpp"
#include "support/gpu.hpp"
#include "support/gpu_problems.hpp"
#include "support/pools.hpp"

namespace replay_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

void check_replay(const kda::Problem& problem, DType dtype, const std::vector<std::string>& words = {}) {
  for (const std::string_view name : test::gpu_variants) {
    kda::RunOptions options = test::default_options(problem, name, dtype);
    for (const std::string& word : words)
      if (kda::has_axis(kda::variant_named(name).axes, word)) kda::set_axis(options.arithmetic, word);
    if (!kda::variant_named(name).unsupported(problem, options).empty()) continue;
    INFO(name << " in " << numeric::name_of(dtype) << (words.empty() ? "" : ", ")
              << (words.empty() ? "" : words[0]));
    CHECK(test::differing_from_replay(problem, name, options) == 0);
  }
}

}  // namespace

TEST_CASE("GPU and replay give the same bits on every fixture", "[replay]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_fixtures([](const kda::Problem& problem) {
    check_replay(problem, problem.dtype());
    if (problem.dtype() != DType::fp32) check_replay(problem, DType::fp32);
  });
}

TEST_CASE("GPU and replay give the same bits on regimes", "[replay]") {
  KDA_CHECK_NEEDS_GPU();
  constexpr DType dtypes[] = {DType::fp32, DType::bf16};
  test::on_regimes(dtypes, [](const kda::Problem& problem, DType dtype) {
    // Where the answer is not finite, NaNs need not be the same NaN.
    const kda::Answer answer = test::run(problem, "recurrent", dtype, 16);
    bool finite = true;
    for (std::size_t i = 0; i < answer.o.size(); ++i) finite = finite && std::isfinite(answer.o.value(i));
    if (finite) check_replay(problem, dtype);
  });
}

TEST_CASE("GPU and replay give the same bits in every shape", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::in_shapes({1, 5, 20, 31, 32, 33, 60, 64, 96, 100, 128, 130, 192, 200, 256}, {1, 3, 33, 64, 70, 128},
                  17, 130, [](const ProblemSpec& spec, std::uint64_t seed) {
                    check_replay(test::make_problem(spec, seed), DType::fp32);
                  });
}

TEST_CASE("gpu-recurrent decodes in the slots of a pool, and touches no other", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  kda::SlotTable table;
  table.indices = {6, 2, 7, 0, 3};
  for (const std::size_t K : {64, 128})
    for (const std::size_t V : {128, 256})
      for (const bool v_first : {false, true}) {
        ProblemSpec spec;
        spec.K = K, spec.V = V, spec.H = 2, spec.HV = 4, spec.B = 5, spec.T = 1, spec.state_v_first = v_first;
        spec.qk_l2norm = v_first;
        INFO("K " << K << " V " << V << (v_first ? ", states [V,K]" : ""));
        const kda::Problem problem = test::make_pool_problem(spec, table, 8);
        for (const DType dtype : test::replayed_dtypes) {
          const kda::RunOptions options = test::default_options(problem, "gpu-recurrent", dtype);
          REQUIRE(kda::decodes_in_place(problem, options));
          const kda::Answer answer = test::run(problem, "gpu-recurrent", options);
          CHECK(test::differing(answer, test::replayed(problem, "gpu-recurrent", options)) == 0);
          const tensor::Tensor& before = problem.pool->states;
          const std::size_t bytes = before.bytes() / 8;
          for (const std::size_t slot : {1, 4, 5})
            CHECK(std::memcmp(answer.pool.data() + slot * bytes, before.data() + slot * bytes, bytes) == 0);
          CHECK(kda::time_decoding(problem, options, 2).graph.size() == 2);
        }
      }
}

TEST_CASE("gpu-recurrent takes calls that it has no kernel for in their ordinary form", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.K = 64, spec.V = 128, spec.H = 1, spec.HV = 2, spec.B = 3, spec.T = 2;
  kda::SlotTable rows, drafts;
  rows.indices = {6, 2, 7};
  drafts.indices = {6, 5, 2, 1, 7, 0}, drafts.columns = 2, drafts.accepted = {1, 2, 1};
  for (const kda::SlotTable& table : {rows, drafts})
    for (const DType states : {DType::fp32, DType::bf16}) {
      const kda::Problem problem = test::make_pool_problem(spec, table, 8, states);
      const kda::RunOptions options = test::default_options(problem, "gpu-recurrent", DType::fp32);
      CHECK_FALSE(kda::decodes_in_place(problem, options));
      CHECK(test::differing_from_replay(problem, "gpu-recurrent", options) == 0);
    }
}

TEST_CASE("GPU and replay give the same bits with every option", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::with_every_option(90, [](ProblemSpec spec, std::size_t options) {
    spec.dtype = test::replayed_dtypes[options % 3];
    check_replay(test::make_problem(spec, options), spec.dtype);
  });
}

TEST_CASE("GPU and replay give the same bits with one decay, betas of columns, and gates",
          "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_relatives({3, 64, 70, 128}, [](const ProblemSpec& spec, std::uint64_t seed) {
    const kda::Problem problem = test::make_problem(spec, seed);
    check_replay(problem, spec.dtype);
    check_replay(problem, DType::fp32, {"contraction=separate"});
  });
}

TEST_CASE("GPU and replay give the same bits on packed sequences, empty ones included", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = test::packed_spec();
  for (const int chunk : {16, 32, 64}) {
    spec.chunk_size = chunk;
    for (const DType dtype : test::replayed_dtypes) {
      spec.dtype = dtype;
      check_replay(test::make_problem(spec), dtype);
    }
  }
}

TEST_CASE("GPU and replay give the same bits in every arithmetic the GPU has", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  std::vector<std::string> words{"contraction=separate", "exponential=cuda-fast", "decay=anchor-pair",
                                 "decay=anchor-first",   "decay=anchor-mid",      "storage=none",
                                 "storage=fla",          "storage=flash-kda"};
  for (const char* const stage : {"products", "normalised", "decay", "g_cumsum", "exponentials",
                                  "score_operands", "Aqk", "L", "inverse_operands", "Akk_inv", "beta_key",
                                  "operands", "w", "u", "prediction", "v_new", "state", "carry"})
    for (const char* const format : {"bf16", "fp16", "tf32"})
      words.push_back(std::string("storage=") + format + "@" + stage);
  ProblemSpec spec;
  spec.T = 100, spec.K = 48, spec.V = 40, spec.qk_l2norm = true;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    spec.dtype = dtype;
    const kda::Problem problem = test::make_problem(spec);
    for (const std::string& word : words) check_replay(problem, dtype, {word});
  }
}

TEST_CASE("GPU and replay give the same bits through every kernel there is", "[replay][race]") {
  KDA_CHECK_NEEDS_GPU();
  // Every width of the registers, length of a chunk and form of the decay once: short, for tools that watch
  // each access.
  struct Size {
    std::size_t T, K, V;
    int chunk;
    bool safe_gate;
  };
  for (const Size& size :
       {Size{70, 20, 33, 64, false}, Size{70, 64, 70, 64, true}, Size{40, 100, 8, 32, true},
        Size{40, 128, 64, 16, false}, Size{70, 200, 20, 64, true}, Size{70, 256, 20, 64, false}}) {
    ProblemSpec spec;
    spec.T = size.T, spec.K = size.K, spec.V = size.V, spec.chunk_size = size.chunk,
    spec.safe_gate = size.safe_gate;
    spec.qk_l2norm = true;
    const kda::Problem problem = test::make_problem(spec);
    INFO("K " << size.K << " chunk " << size.chunk);
    check_replay(problem, DType::fp32);
    check_replay(problem, DType::fp32, {"contraction=separate"});
    for (const std::string_view name : test::gpu_variants) {  // fp64 has no replay
      const kda::Answer answer = test::run(problem, name, DType::fp64);
      CHECK(test::rms_ratio(answer.o, test::whole_oracle(problem).o) < 1e-12);
    }
  }
}

TEST_CASE("every stage of gpu-chunk has the bits of its replay", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const bool v_first : {false, true})
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      ProblemSpec spec;
      spec.T = 150, spec.K = 40, spec.V = 72, spec.B = 2, spec.H = 2, spec.HV = 4,
      spec.state_v_first = v_first;
      spec.dtype = dtype;
      const kda::Problem problem = test::make_problem(spec);
      test::check_stages_of_replay(problem, test::default_options(problem, "gpu-chunk", dtype));
    }
}

}  // namespace replay_tests

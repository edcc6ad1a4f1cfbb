// Variants against truths: the oracle everywhere, torch where fixtures are.
#include "kda/variants/variants.hpp"

#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "base/threads/work.hpp"
#include "fixture/fixture.hpp"
#include "kda/bounds/gate_statistics.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace variants_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

std::vector<ProblemSpec> shapes() {
  std::vector<ProblemSpec> specs;
  for (const std::size_t T : {1, 15, 17, 64, 65, 130})
    for (const auto& [K, V] : {std::pair<std::size_t, std::size_t>{1, 1}, {7, 5}, {64, 33}, {48, 130}}) {
      ProblemSpec spec;
      spec.T = T, spec.K = K, spec.V = V;
      specs.push_back(spec);
    }
  return specs;
}

struct Errors {
  double o, state;
};

Errors rms(const kda::Answer& answer, const test::WholeOracle& oracle) {
  return {test::rms_ratio(answer.o, oracle.o), test::rms_ratio(answer.final_state, oracle.final_state)};
}

std::vector<numeric::DoubleDouble> as_exact(const tensor::Tensor& tensor) {
  std::vector<numeric::DoubleDouble> values(tensor.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = {tensor.value(i), 0.0};
  return values;
}

}  // namespace

TEST_CASE("the compute format is the coarsest of the stages a variant has", "[variants]") {
  using numeric::ComputeFormat;
  const kda::Problem problem = test::make_problem({});
  const auto format = [&](const char* name, DType dtype, const char* storage) {
    const kda::Variant& variant = kda::variant_named(name);
    kda::Arithmetic arithmetic = variant.default_arithmetic(problem, dtype);
    if (storage != nullptr) kda::set_axis(arithmetic, storage);
    return kda::compute_format(variant, dtype, arithmetic);
  };
  // Token forms have no operands to round.
  CHECK(format("recurrent", DType::fp32, "storage=bf16@operands") == ComputeFormat::fp32);
  CHECK(format("naive", DType::fp32, "storage=bf16@v_new") == ComputeFormat::fp32);
  CHECK(format("recurrent", DType::fp32, "storage=bf16@carry") == ComputeFormat::bf16);
  CHECK(format("recurrent", DType::fp32, "storage=fp16@decay") == ComputeFormat::fp16);
  CHECK(format("naive", DType::fp32, "storage=tf32@prediction") == ComputeFormat::tf32);
  for (const char* const stage : {"operands", "v_new", "state", "Aqk", "L", "w", "u", "g_cumsum", "carry"})
    CHECK(format("chunk", DType::fp32, (std::string("storage=bf16@") + stage).c_str()) ==
          ComputeFormat::bf16);
  CHECK(format("chunk", DType::fp32, "storage=none") == ComputeFormat::fp32);
  CHECK(format("chunk", DType::fp32, "storage=fla") == ComputeFormat::tf32);
  CHECK(format("chunk", DType::fp32, "storage=flash-kda") == ComputeFormat::bf16);
  CHECK(format("chunk", DType::bf16, nullptr) == ComputeFormat::bf16);
  // Its scores and its inverse are made of tf32 operands, cut where fp16 rounds.
  CHECK(format("chunk", DType::fp16, nullptr) == ComputeFormat::tf32);
  CHECK(format("recurrent", DType::bf16, nullptr) == ComputeFormat::fp32);
  CHECK(format("naive", DType::fp64, "storage=bf16@carry") == ComputeFormat::fp64);
  // A stored state makes it no finer.
  const auto with_state = [&](const char* storage, const char* stored) {
    kda::Arithmetic arithmetic;
    kda::set_axis(arithmetic, storage), kda::set_axis(arithmetic, stored);
    return kda::compute_format(kda::variant_named("recurrent"), DType::fp32, arithmetic);
  };
  CHECK(with_state("storage=bf16@decay", "stored=fp16") == ComputeFormat::bf16);
  CHECK(with_state("storage=fp16@decay", "stored=bf16") == ComputeFormat::bf16);
  CHECK(with_state("storage=none", "stored=fp16") == ComputeFormat::fp16);
  CHECK(with_state("storage=none", "stored=int8") == ComputeFormat::bf16);
}

TEST_CASE("a chunk longer than every sequence takes the memory of the sequence", "[variants]") {
  for (const std::size_t T : {20, 100}) {
    ProblemSpec spec;
    spec.T = T;
    const kda::Problem problem = test::make_problem(spec);
    kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
    options.chunk_size = 128;
    const kda::Answer usual = test::run(problem, "chunk", options);
    options.chunk_size = 1 << 20;
    options.memory_limit = 1 << 20;
    const kda::Answer long_chunk = test::run(problem, "chunk", options);
    CHECK(test::differing_bits(usual.o, long_chunk.o) == 0);
    CHECK(test::differing_bits(usual.final_state, long_chunk.final_state) == 0);
    CHECK(kda::gate_statistics(problem, 1 << 20, 1).largest_chunk_sum ==
          kda::gate_statistics(problem, T, 1).largest_chunk_sum);
    options.memory_limit = 1 << 10;
    CHECK_THROWS_WITH(test::run(problem, "chunk", options), ContainsSubstring("the memory limit is"));
  }
}

TEST_CASE("every variant is right for odd shapes in fp64 and fp32", "[variants]") {
  for (const ProblemSpec& spec : shapes()) {
    const kda::Problem problem = test::make_problem(spec);
    const test::WholeOracle oracle = test::whole_oracle(problem);
    for (const std::string_view name : {"naive", "recurrent", "chunk"}) {
      INFO(name << " T=" << spec.T << " K=" << spec.K << " V=" << spec.V);
      const Errors fp64 = rms(test::run(problem, name, DType::fp64, 2), oracle);
      CHECK(fp64.o < 1e-14);
      CHECK(fp64.state < 1e-14);
      const Errors fp32 = rms(test::run(problem, name, DType::fp32, 2), oracle);
      CHECK(fp32.o < 4e-6);
      CHECK(fp32.state < 4e-6);
    }
  }
}

TEST_CASE("every option is honoured by every variant", "[variants]") {
  std::vector<ProblemSpec> specs(9);
  specs[0].gate = kda::Gate::softplus;
  specs[1].gate = kda::Gate::lower_bound, specs[1].safe_gate = true;
  specs[2].gate = kda::Gate::lower_bound, specs[2].A_log = false, specs[2].dt_bias = false;
  specs[3].qk_l2norm = true;
  specs[4].beta_sigmoid = true;
  specs[5].beta_sigmoid = specs[5].allow_neg_eigval = true;
  specs[6].initial_state = false, specs[6].state_v_first = true;
  specs[7].T = 77, specs[7].HV = 2, specs[7].cu_seqlens = {0, 0, 5, 70, 77};
  specs[8].H = 2, specs[8].HV = 6, specs[8].K = 12, specs[8].V = 20, specs[8].state_v_first = true;
  for (const ProblemSpec& spec : specs) {
    const kda::Problem problem = test::make_problem(spec);
    const test::WholeOracle oracle = test::whole_oracle(problem);
    for (const std::string_view name : {"naive", "recurrent", "chunk"}) {
      const Errors error = rms(test::run(problem, name, DType::fp64), oracle);
      INFO(name << " option set " << (&spec - specs.data()));
      CHECK(error.o < 1e-14);
      CHECK(error.state < 1e-14);
    }
  }
}

TEST_CASE("every formulation of the chunk form is right for every chunk length", "[variants]") {
  ProblemSpec spec;
  spec.T = 150, spec.K = 24, spec.V = 40;
  const kda::Problem problem = test::make_problem(spec);
  const test::WholeOracle oracle = test::whole_oracle(problem);
  for (const std::size_t chunk : {16, 32, 64, 100})
    for (const kda::DecayForm decay : {kda::DecayForm::pair, kda::DecayForm::anchor_pair,
                                       kda::DecayForm::anchor_first, kda::DecayForm::anchor_mid})
      for (const int anchor : {16, 32, 64})
        for (const kda::InverseForm inverse : {kda::InverseForm::substitution, kda::InverseForm::blocks}) {
          kda::RunOptions options = test::default_options(problem, "chunk", DType::fp64);
          options.chunk_size = chunk;
          options.arithmetic.decay = decay, options.arithmetic.anchor_rows = anchor,
          options.arithmetic.inverse = inverse;
          const Errors error = rms(test::run(problem, "chunk", options), oracle);
          INFO("chunk " << chunk << " decay " << static_cast<int>(decay) << " anchor " << anchor);
          CHECK(error.o < 1e-13);
          CHECK(error.state < 1e-13);
        }
}

TEST_CASE("a run and a truth count every column of every token once, on any number of threads",
          "[variants]") {
  ProblemSpec spec = test::packed_spec();
  spec.H = 2, spec.HV = 4, spec.V = 70;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  const kda::Dimensions& d = problem.dimensions();
  const auto share_counted = [&](const std::function<void(int threads)>& run, int threads) {
    const Work whole(1);
    const Work part(1, 2 * static_cast<double>(d.B * d.T * d.HV * d.V));
    run(threads);
    return whole.done();
  };
  for (const int threads : {1, 3}) {
    for (const kda::Variant& variant : test::cpu_variants())
      for (const kda::Pass pass : kda::every_pass) {
        INFO(variant.name << ' ' << kda::name_of(pass) << ' ' << threads);
        const auto run = [&](int with) {
          kda::RunOptions options = test::default_options(problem, variant.name, DType::fp32);
          options.threads = with;
          kda::run_pass(pass, variant, problem, options);
        };
        CHECK(share_counted(run, threads) == 0.5);
      }
    CHECK(share_counted([&](int with) { kda::run_oracle(problem, kda::OraclePrecision::fp64, with, {}); },
                        threads) == 0.5);
    CHECK(share_counted(
              [&](int with) { kda::run_gradient_oracle(problem, kda::OraclePrecision::fp64, 64, with); },
              threads) == 0.5);
  }
}

TEST_CASE("results are the same bits on any number of threads and in every run", "[variants]") {
  ProblemSpec spec;
  spec.B = 2, spec.T = 70, spec.H = 2, spec.HV = 4, spec.K = 20, spec.V = 36;
  spec.qk_l2norm = true, spec.gate = kda::Gate::softplus, spec.beta_sigmoid = true;
  const kda::Problem problem = test::make_problem(spec);
  for (const std::string_view name : {"naive", "recurrent", "chunk"})
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      const kda::Answer one = test::run(problem, name, dtype, 1);
      for (const int threads : {1, 2, 3, 16}) {
        const kda::Answer again = test::run(problem, name, dtype, threads);
        INFO(name << ' ' << numeric::name_of(dtype) << ' ' << threads);
        REQUIRE(test::differing_bits(one.o, again.o) == 0);
        REQUIRE(test::differing_bits(one.final_state, again.final_state) == 0);
      }
    }
}

TEST_CASE("an unknown variant is refused with a suggestion", "[variants]") {
  CHECK_THROWS_WITH(kda::variant_named("recurent"), ContainsSubstring("did you mean 'recurrent'?"));
}

TEST_CASE("arithmetic is set and described in the same words", "[variants]") {
  kda::Arithmetic arithmetic;
  for (const char* const word :
       {"contraction=separate", "decay=anchor-mid:32", "inverse=blocks:16", "storage=none"})
    kda::set_axis(arithmetic, word);
  const std::string text = kda::describe(arithmetic, {.chunk = true});
  for (const char* const word :
       {"contraction=separate", "decay=anchor-mid:32", "inverse=blocks:16", "storage=none"})
    CHECK_THAT(text, ContainsSubstring(word));
  CHECK_THROWS_WITH(kda::set_axis(arithmetic, "decay=anchor-mid:17"), ContainsSubstring("16, 32 or 64"));
  CHECK_THROWS_WITH(kda::set_axis(arithmetic, "contracton=fused"),
                    ContainsSubstring("did you mean 'contraction'?"));
  CHECK_THROWS_WITH(kda::set_axis(arithmetic, "decay"), ContainsSubstring("wanted key=value"));
  CHECK_THROWS_WITH(kda::set_axis(arithmetic, "storage=bf16"), ContainsSubstring("FORMAT@STAGE"));
  CHECK_THROWS_WITH(kda::set_axis(arithmetic, "storage=bf16@"),
                    ContainsSubstring("no stage named") && ContainsSubstring("one of: products"));
  for (const char* const dangling : {"storage=bf16@u+", "storage=+bf16@u", "storage=bf16@u++bf16@w"})
    CHECK_THROWS_WITH(kda::set_axis(arithmetic, dangling), ContainsSubstring("wanted FORMAT@STAGE"));
}

TEST_CASE("fp64 variants agree with torch's fp64 recurrence on all fixtures", "[variants][fixtures]") {
  std::size_t compared = 0;
  for (const std::string& path : test::all_fixture_files()) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const fixture::ExpectedGroup* const truth = file.expected_named("torch_fp64");
    if (truth == nullptr || truth->tensor("o") == nullptr) continue;
    ++compared;
    const kda::Problem problem = file.read_problem();
    for (const std::string_view name : {"naive", "recurrent", "chunk"}) {
      const kda::Answer answer = test::run(problem, name, DType::fp64, 2);
      const double limit = name == "chunk" ? 1e-12 : 1e-13;
      INFO(file.name() << ' ' << name);
      CHECK(test::rms_ratio(answer.o, as_exact(file.read(*truth->tensor("o")))) <= limit);
      if (const fixture::DatasetInfo* const state = truth->tensor("final_state"); state != nullptr)
        CHECK(test::rms_ratio(answer.final_state, as_exact(file.read(*state))) <= limit);
    }
  }
  CHECK(compared > 5);
}

}  // namespace variants_tests

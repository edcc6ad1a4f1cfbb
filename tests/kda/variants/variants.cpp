// Variants against truths: the oracle everywhere, torch and Triton where the large fixtures are.
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

Errors scaled(const kda::Answer& answer, const test::WholeOracle& oracle) {
  return {test::max_scaled_ulp(answer.o, oracle.o, oracle.o_magnitude),
          test::max_scaled_ulp(answer.final_state, oracle.final_state, oracle.state_magnitude)};
}

struct Recorded {
  tensor::Tensor o, final_state;
};

Recorded recorded(const fixture::Fixture& file, std::string_view group) {
  const fixture::ExpectedGroup& expected = *file.expected_named(group);
  return {file.read(*expected.tensor("o")), file.read(*expected.tensor("final_state"))};
}

std::vector<numeric::DoubleDouble> as_exact(const tensor::Tensor& tensor) {
  std::vector<numeric::DoubleDouble> values(tensor.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = {tensor.value(i), 0.0};
  return values;
}

bool is_narrow(DType dtype) { return dtype == DType::bf16 || dtype == DType::fp16; }

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
  std::vector<ProblemSpec> specs(8);
  specs[0].gate = kda::Gate::softplus;
  specs[1].gate = kda::Gate::lower_bound, specs[1].safe_gate = true;
  specs[2].gate = kda::Gate::lower_bound, specs[2].A_log = false, specs[2].dt_bias = false;
  specs[3].qk_l2norm = true;
  specs[4].beta_sigmoid = true;
  specs[5].beta_sigmoid = specs[5].allow_neg_eigval = true;
  specs[6].initial_state = false, specs[6].state_v_first = true;
  specs[7].T = 77, specs[7].HV = 2, specs[7].cu_seqlens = {0, 0, 5, 70, 77};
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

TEST_CASE("separate and fused contraction differ, and both are right", "[variants]") {
  const kda::Problem problem = test::make_problem({});
  const test::WholeOracle oracle = test::whole_oracle(problem);
  for (const std::string_view name : {"naive", "recurrent", "chunk"}) {
    kda::RunOptions options = test::default_options(problem, name, DType::fp32);
    options.arithmetic.contraction = kda::Contraction::fused;
    const kda::Answer fused = test::run(problem, name, options);
    options.arithmetic.contraction = kda::Contraction::separate;
    const kda::Answer separate = test::run(problem, name, options);
    INFO(name);
    CHECK(test::differing_bits(fused.o, separate.o) > 0);
    CHECK(rms(fused, oracle).o < 1e-6);
    CHECK(rms(separate, oracle).o < 1e-6);
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

// --- against answers we did not write
// -------------------------------------------------------------------------------

TEST_CASE("fp64 variants agree with torch's fp64 recurrence on all large fixtures", "[variants][fixtures]") {
  const std::vector<std::string> files = test::large_fixture_files();
  if (files.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  for (const std::string& path : files) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const kda::Problem problem = file.read_problem();
    const Recorded torch = recorded(file, "torch_fp64");
    for (const std::string_view name : {"naive", "recurrent", "chunk"}) {
      const kda::Answer answer = test::run(problem, name, DType::fp64, 2);
      const double limit = name == "chunk" ? 1e-12 : 1e-13;
      INFO(file.name() << ' ' << name);
      CHECK(test::rms_ratio(answer.o, as_exact(torch.o)) <= limit);
      CHECK(test::rms_ratio(answer.final_state, as_exact(torch.final_state)) <= limit);
    }
  }
}

TEST_CASE(
    "fp32 recurrent is within 16 scaled ULP and 4 times the Triton kernel's error on all large fixtures",
    "[variants][fixtures]") {
  const std::vector<std::string> files = test::large_fixture_files();
  if (files.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  for (const std::string& path : files) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const kda::Problem problem = file.read_problem();
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    const kda::Answer answer = test::run(problem, "recurrent", DType::fp32, 2);
    const Errors error = rms(answer, oracle), units = scaled(answer, oracle);
    const Recorded triton = recorded(file, "fla_recurrent");
    INFO(file.name());
    CHECK(units.o <= 16);
    CHECK(units.state <= 16);
    CHECK(error.o <= 4 * test::rms_ratio(triton.o, oracle.o));
    CHECK(error.state <= 4 * test::rms_ratio(triton.final_state, oracle.final_state));
    // The Triton recurrence itself, as its authors' fp32 arithmetic allows: the reader, the oracle and the
    // conventions agree with code we did not write. Functions that it approximates, of gates, err more.
    if (file.dtype() == DType::fp32 && problem.options.gate == kda::Gate::none)
      CHECK(test::rms_ratio(triton.o, oracle.o) == Approx(5.5e-8).epsilon(0.2));
  }
}

TEST_CASE("16-bit variants are no worse than 1.5 times the Triton kernel of their kind on all large fixtures",
          "[variants][fixtures]") {
  const std::vector<std::string> files = test::large_fixture_files();
  if (files.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  for (const std::string& path : files) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    if (!is_narrow(file.dtype())) continue;
    const kda::Problem problem = file.read_problem();
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    for (const auto& [ours, theirs] :
         {std::pair{"recurrent", "fla_recurrent"}, {"naive", "fla_recurrent"}, {"chunk", "fla_chunk"}}) {
      const kda::Answer answer = test::run(problem, ours, file.dtype(), 2);
      const Recorded triton = recorded(file, theirs);
      const Errors error = rms(answer, oracle);
      INFO(file.name() << ' ' << ours);
      CHECK(error.o <= 1.5 * test::rms_ratio(triton.o, oracle.o));
      CHECK(error.state <= 1.5 * test::rms_ratio(triton.final_state, oracle.final_state));
      CHECK(test::max_scaled_ulp(answer.o, oracle.o, oracle.o_magnitude) <=
            1.5 * test::max_scaled_ulp(triton.o, oracle.o, oracle.o_magnitude) + 0.01);
    }
  }
}

TEST_CASE(
    "under the preset fla chunk errs as Triton's chunk kernel does, element by element, on the fp32 captures",
    "[variants][fixtures]") {
  const std::vector<std::string> files = test::large_fixture_files();
  if (files.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  for (const std::string& path : files) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    if (file.dtype() != DType::fp32) continue;
    const kda::Problem problem = file.read_problem();
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    for (const auto& [ours, theirs, share, apart] :
         {std::tuple{"chunk", "fla_chunk", 1.5, 0.1}, {"recurrent", "fla_recurrent", 1.2, HUGE_VAL}}) {
      kda::RunOptions options = test::default_options(problem, ours, DType::fp32);
      options.threads = 2;
      kda::set_axis(options.arithmetic, "fla");
      const kda::Answer answer = test::run(problem, ours, options);
      const Recorded triton = recorded(file, theirs);
      const double error = test::rms_ratio(answer.o, oracle.o),
                   triton_error = test::rms_ratio(triton.o, oracle.o);
      const double between = test::rms_ratio(answer.o, as_exact(triton.o));
      INFO(file.name() << ' ' << ours << ": " << error << " against " << triton_error << ", " << between
                       << " apart");
      CHECK(error <= share * triton_error);
      CHECK(between <= apart * triton_error);
    }
  }
}

}  // namespace variants_tests

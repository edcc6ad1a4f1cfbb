// The GPU variants backwards: the bits of their CPU replays whatever the problem, and the oracle's gradients.
#include <fmt/format.h>

#include "kda/truth/gradient_oracle.hpp"
#include "support/gpu.hpp"
#include "support/gpu_problems.hpp"
#include "support/gradients.hpp"

namespace backward_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

kda::GradientTensors gradients_of(std::string_view variant, const kda::Problem& problem,
                                  kda::RunOptions options) {
  options.threads = 16;
  return kda::variant_named(variant).run_backward(problem, options);
}

/// Of every variant that has the word and takes the problem. `where_finite`: only if all gradients are; NaNs
/// need not be the same NaN.
void check_replay(const kda::Problem& problem, DType dtype, const std::string& word = {},
                  bool where_finite = false) {
  for (const std::string_view name : test::gpu_variants) {
    const kda::Variant& variant = kda::variant_named(name);
    kda::RunOptions options = test::default_options(problem, name, dtype);
    if (!word.empty()) {
      if (!kda::has_axis(variant.axes, word)) continue;
      kda::set_axis(options.arithmetic, word);
    }
    if (!variant.unsupported(problem, options).empty()) continue;
    INFO(name << " in " << numeric::name_of(dtype) << ' ' << word);
    const kda::GradientTensors replayed = gradients_of(variant.replay, problem, options);
    if (where_finite && !test::is_finite(replayed)) continue;
    CHECK(test::differing(gradients_of(name, problem, options), replayed) == 0);
  }
}

void check_against_oracle(const kda::Problem& problem) {
  const kda::GradientTruths truths = test::gradient_truths(problem);
  for (const std::string_view name : test::gpu_variants) {
    const kda::RunOptions options = test::default_options(problem, name, DType::fp64);
    if (!kda::variant_named(name).unsupported(problem, options).empty()) continue;
    INFO(name);
    test::check_near(gradients_of(name, problem, options), truths, 1e-12);
  }
}

}  // namespace

TEST_CASE("GPU gradients have the bits of their replay on every fixture", "[replay]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_fixtures([](kda::Problem of) {
    const kda::Problem problem = test::with_any_loss(std::move(of));
    check_replay(problem, problem.dtype());
    if (problem.dtype() != DType::fp32) check_replay(problem, DType::fp32);
  });
}

TEST_CASE("GPU gradients have the bits of their replay on regimes", "[replay]") {
  KDA_CHECK_NEEDS_GPU();
  constexpr DType dtypes[] = {DType::fp32, DType::bf16};
  test::on_regimes(dtypes, [](kda::Problem problem, DType dtype) {
    check_replay(test::with_any_loss(std::move(problem)), dtype, {}, true);
  });
}

TEST_CASE("GPU gradients have the bits of their replay in every shape", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::in_shapes({1, 5, 20, 31, 32, 33, 60, 64, 96, 100, 128, 130, 192, 256},
                  {1, 3, 17, 33, 64, 70, 128, 129, 200, 256, 300}, 1, 83,
                  [](const ProblemSpec& spec, std::uint64_t seed) {
                    check_replay(test::with_loss(test::make_problem(spec, seed)), DType::fp32);
                  });
}

TEST_CASE("GPU gradients have the bits of their replay with every option", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::with_every_option(90, [](ProblemSpec spec, std::size_t options) {
    spec.initial_state = !(options & 8), spec.dtype = test::replayed_dtypes[options % 3];
    kda::Problem problem = test::with_loss(test::make_problem(spec, options));
    if (options % 5 == 1) problem.output_gradient.reset();
    if (options % 5 == 2) problem.state_gradient.reset();
    check_replay(problem, spec.dtype);
  });
}

TEST_CASE("GPU gradients have the bits of their replay with one decay, betas of columns, and gates",
          "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_relatives({3, 64, 70, 128, 300}, [](const ProblemSpec& spec, std::uint64_t seed) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec, seed));
    check_replay(problem, spec.dtype);
    check_replay(problem, DType::fp32, "contraction=separate");
  });
}

TEST_CASE("GPU gradients of KDA's relatives are those of the oracle in fp64", "[small]") {
  KDA_CHECK_NEEDS_GPU();
  for (auto [name, spec] : test::relatives()) {
    spec.K = 72, spec.V = 40, spec.T = 150, spec.H = 2, spec.HV = 4;
    INFO(name << ", strength " << static_cast<int>(spec.strength));
    check_against_oracle(test::with_loss(test::make_problem(spec)));
  }
}

TEST_CASE("GPU gradients have the bits of their replay on packed sequences, empty ones included",
          "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = test::packed_spec();
  spec.gate = kda::Gate::softplus;
  for (const int chunk : {16, 32, 64})
    for (const DType dtype : test::replayed_dtypes) {
      spec.chunk_size = chunk, spec.dtype = dtype;
      check_replay(test::with_loss(test::make_problem(spec)), dtype);
    }
}

TEST_CASE("GPU gradients have the bits of their replay in every arithmetic the GPU has", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 100, spec.K = 48, spec.V = 40, spec.qk_l2norm = true, spec.gate = kda::Gate::lower_bound;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    spec.dtype = dtype;
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    for (const char* const word :
         {"contraction=separate", "exponential=cuda-fast", "storage=flash-kda", "storage=none", "storage=fla",
          "decay=anchor-pair", "decay=anchor-first", "decay=anchor-mid", "tail=difference"})
      check_replay(problem, dtype, word);
    for (const kda::CastPointRow& point : kda::cast_point_rows())
      for (const char* const format : {"bf16", "fp16", "tf32"})
        check_replay(problem, dtype, fmt::format("storage={}@{}", format, point.name));
  }
}

TEST_CASE(
    "GPU gradients through every kernel there is have the bits of their replay and in fp64 those of the "
    "oracle nearly",
    "[replay][race]") {
  KDA_CHECK_NEEDS_GPU();
  // Every width of the registers, length of a chunk and form of the decay once: short, for tools that watch
  // each access.
  struct Size {
    std::size_t T, K, V;
    int chunk;
    bool safe_gate;
  };
  for (const Size& size :
       {Size{70, 64, 64, 64, true}, Size{20, 128, 128, 16, false}, Size{40, 20, 33, 32, false},
        Size{20, 130, 200, 64, true}, Size{9, 32, 300, 64, false}}) {
    ProblemSpec spec;
    spec.T = size.T, spec.K = size.K, spec.V = size.V, spec.qk_l2norm = true, spec.beta_sigmoid = true,
    spec.gate = kda::Gate::softplus, spec.chunk_size = size.chunk, spec.safe_gate = size.safe_gate;
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    INFO("K " << size.K << " V " << size.V);
    check_replay(problem, DType::fp32);
    check_replay(problem, DType::fp32, "contraction=separate");
    check_against_oracle(problem);
  }
}

TEST_CASE("GPU gradients in fp64 are within 1e-12 of the oracle on every fixture", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_fixtures(
      [](kda::Problem problem) { check_against_oracle(test::with_any_loss(std::move(problem))); });
}

TEST_CASE("GPU gradients of twenty runs have one bit pattern", "[gpu]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.B = 3, spec.T = 150, spec.H = 2, spec.HV = 4, spec.K = 64, spec.V = 72;
  spec.qk_l2norm = true, spec.gate = kda::Gate::lower_bound, spec.beta_sigmoid = true;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  for (const std::string_view name : test::gpu_variants)
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16}) {
      const kda::RunOptions options = test::default_options(problem, name, dtype);
      if (!kda::variant_named(name).unsupported(problem, options).empty()) continue;
      const kda::GradientTensors first = gradients_of(name, problem, options);
      for (int again = 1; again < 20; ++again)
        REQUIRE(test::differing(first, gradients_of(name, problem, options)) == 0);
    }
}

TEST_CASE("the backward stages of the GPU are those of its replay", "[replay][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const bool v_first : {false, true})
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      ProblemSpec spec;
      spec.T = 150, spec.K = 40, spec.V = 72, spec.B = 2, spec.H = 2, spec.HV = 4,
      spec.state_v_first = v_first;
      spec.dtype = dtype;
      const kda::Problem problem = test::with_loss(test::make_problem(spec));
      test::check_backward_stages_of_replay(problem, test::default_options(problem, "gpu-chunk", dtype));
    }
}

}  // namespace backward_tests

// gpu-chunk on tensor cores against its CPU replay, forwards and backwards: the same bits, whatever the
// problem.
#include "kda/arithmetic/tensor_core_limits.hpp"
#include "kda/gpu/device.hpp"
#include "support/gpu.hpp"
#include "support/gpu_problems.hpp"
#include "support/gradients.hpp"

namespace tensor_cores_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

/// A preset on tensor cores, in a dtype that it has.
struct Way {
  std::string_view preset;
  DType dtype;
};
constexpr Way ways[] = {{"h100-mma", DType::bf16},
                        {"h100-mma3", DType::fp32},
                        {"h100-mma", DType::fp16},
                        {"h100-mma3", DType::bf16},
                        {"h100-mma3", DType::fp16}};
/// One for each preset, of those of its dtypes in turn.
std::vector<Way> both_presets(std::size_t number) {
  constexpr DType narrow[] = {DType::bf16, DType::fp16}, all[] = {DType::fp32, DType::bf16, DType::fp16};
  return {{"h100-mma", narrow[number % 2]}, {"h100-mma3", all[number % 3]}};
}

kda::RunOptions on_tensor_cores(const kda::Problem& problem, const Way& way) {
  kda::RunOptions options = test::default_options(problem, "gpu-chunk", way.dtype, {way.preset});
  return options;
}

std::string why_not(const kda::Problem& problem, const kda::RunOptions& options) {
  return kda::variant_named("gpu-chunk").unsupported(problem, options);
}

bool has_backward(const kda::Problem& problem, const kda::RunOptions& options) {
  return kda::gpu_lacks_gradients(options.arithmetic, problem.dimensions()).empty();
}

/// Gradient by gradient, and true; `where_finite`: only if all are, for NaNs need not be the same NaN.
bool check_gradients(const kda::Problem& problem, kda::RunOptions options, bool where_finite = false) {
  options.threads = 16;
  const kda::GradientTensors replayed = kda::run_chunk_backward(problem, options);
  if (where_finite && !test::is_finite(replayed)) return false;
  const kda::GradientTensors gpu = kda::run_gpu_backward(true, problem, options);
  for (const kda::GradientRow& row : kda::gradients()) {
    const auto g = static_cast<std::size_t>(row.gradient);
    REQUIRE(gpu[g].empty() == replayed[g].empty());
    if (gpu[g].empty()) continue;
    INFO(row.name);
    CHECK(test::differing_bits(gpu[g], replayed[g]) == 0);
  }
  return true;
}

/// Both passes; the second of a loss of its own where the problem has none.
void check_replay(kda::Problem problem, const Way& way, const std::vector<std::string>& words = {}) {
  INFO(way.preset << " in " << numeric::name_of(way.dtype));
  kda::RunOptions options = on_tensor_cores(problem, way);
  for (const std::string& word : words) kda::set_axis(options.arithmetic, word);
  REQUIRE(why_not(problem, options).empty());
  CHECK(test::differing_from_replay(problem, "gpu-chunk", options) == 0);
  if (!has_backward(problem, options)) return;
  if (!problem.has_loss()) test::add_loss(problem);
  check_gradients(problem, options);
}

}  // namespace

TEST_CASE("tensor cores and their replay give the same bits on fixtures", "[tensor_cores]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_fixtures([](const kda::Problem& problem) {
    for (const std::string_view preset : {"h100-mma", "h100-mma3"}) {
      kda::RunOptions options = on_tensor_cores(problem, {preset, problem.dtype()});
      options.chunk_size = 64;
      if (!why_not(problem, options).empty()) continue;
      CHECK(test::differing_from_replay(problem, "gpu-chunk", options) == 0);
      if (problem.has_loss() && has_backward(problem, options)) check_gradients(problem, options);
    }
  });
}

TEST_CASE("tensor cores and their replay give the same bits in every shape", "[tensor_cores][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::in_shapes({1, 5, 16, 20, 32, 33, 60, 64, 66, 96, 100, 128}, {1, 3, 8, 33, 64, 70, 128}, 17, 180,
                  [](ProblemSpec spec, std::uint64_t seed) {
                    spec.chunk_size = 64;
                    for (const Way& way : both_presets(spec.K + spec.V)) {
                      spec.dtype = way.dtype;
                      check_replay(test::make_problem(spec, seed), way);
                    }
                  });
}

TEST_CASE("tensor cores and their replay give the same bits where an image fills shared memory",
          "[tensor_cores][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {129, 160, 200, 255, 256})
    for (const std::size_t V : {8, 33, 128, 256})
      for (const DType dtype : {DType::bf16, DType::fp16}) {
        ProblemSpec spec = test::spec_with_options(K % 2 == 0 ? kda::Gate::lower_bound : kda::Gate::softplus,
                                                   static_cast<int>(K + V) % 64);
        spec.K = K, spec.V = V, spec.T = 17 + (K * 7 + V) % 180, spec.H = 1 + K % 2,
        spec.HV = spec.H * (1 + V % 3);
        spec.safe_gate = V % 2 == 0, spec.dtype = dtype;
        INFO("K " << K << " V " << V << " T " << spec.T);
        check_replay(test::make_problem(spec, K * 1000 + V), {"h100-mma", dtype});
      }
  ProblemSpec spec = test::packed_spec();
  spec.K = 192, spec.dtype = DType::bf16;
  for (const char* const decay : {"anchor-pair", "anchor-first", "anchor-mid"})
    check_replay(test::make_problem(spec), {"h100-mma", DType::bf16}, {std::string("decay=") + decay});
}

TEST_CASE("tensor cores and their replay give the same bits with every option", "[tensor_cores][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::with_every_option(150, [](ProblemSpec spec, std::size_t options) {
    for (const Way& way : both_presets(options)) {
      spec.dtype = way.dtype;
      check_replay(test::make_problem(spec, options), way);
    }
  });
}

TEST_CASE(
    "tensor cores and their replay give the same bits in every form of the decay and on packed sequences",
    "[tensor_cores][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = test::packed_spec();
  for (const Way& way : ways) {
    spec.dtype = way.dtype;
    for (const char* const decay : {"anchor-pair", "anchor-first", "anchor-mid"})
      check_replay(test::make_problem(spec), way, {std::string("decay=") + decay});
  }
}

TEST_CASE("tensor cores and their replay give the same bits where what images lie in is used again",
          "[tensor_cores][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 330, spec.K = 40, spec.V = 40, spec.qk_l2norm = true;
  for (const Way& way : both_presets(0)) {
    spec.dtype = way.dtype;
    check_replay(test::make_problem(spec), way);
  }
  spec.K = 130, spec.dtype = DType::bf16;
  check_replay(test::make_problem(spec), {"h100-mma", DType::bf16});
  spec.T = 200, spec.HV = 68, spec.K = 16, spec.V = 128;  // eight warps a block
  check_replay(test::make_problem(spec), {"h100-mma", DType::bf16});
}

TEST_CASE("tensor cores and their replay give the same bits at K = V = 128 over many chunks",
          "[tensor_cores]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 1000, spec.H = 3, spec.HV = 6, spec.K = spec.V = 128, spec.qk_l2norm = spec.beta_sigmoid = true;
  spec.gate = kda::Gate::softplus;
  for (const Way& way : ways) {
    spec.dtype = way.dtype;
    check_replay(test::make_problem(spec), way);
  }
}

TEST_CASE("tensor cores and their replay give the same bits however many heads share the device",
          "[tensor_cores]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t heads : {8, 48, 80, 160})
    for (const std::size_t V : {64, 100, 128}) {
      ProblemSpec spec;
      spec.T = 130, spec.H = 4, spec.HV = heads, spec.K = 32, spec.V = V, spec.dtype = DType::bf16;
      INFO("heads " << heads << " V " << V);
      for (const std::string_view preset : {"h100-mma", "h100-mma3"})
        check_replay(test::make_problem(spec), {preset, spec.dtype});
    }
}

TEST_CASE("gradients on tensor cores have the bits of their replay with any part of a loss",
          "[tensor_cores][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  for (const Way& way : ways) {
    INFO(way.preset << " in " << numeric::name_of(way.dtype));
    ProblemSpec spec;
    spec.T = 100, spec.K = 48, spec.V = 40, spec.dtype = way.dtype, spec.gate = kda::Gate::lower_bound;
    kda::Problem problem = test::with_loss(test::make_problem(spec));
    const kda::RunOptions options = on_tensor_cores(problem, way);
    for (const DType stored : {DType::fp32, DType::fp64}) {
      tensor::Tensor wide("do", stored, problem.output_gradient->shape());
      for (std::size_t i = 0; i < wide.size(); ++i) wide.set(i, problem.output_gradient->value(i) * 1.0009);
      problem.output_gradient = std::move(wide);
      check_gradients(problem, options);
    }
    problem.output_gradient.reset();
    check_gradients(problem, options);
    problem = test::with_loss(test::make_problem(spec));
    problem.state_gradient.reset();
    check_gradients(problem, options);
  }
}

TEST_CASE("gradients on tensor cores have the bits of their replay on regimes", "[tensor_cores]") {
  KDA_CHECK_NEEDS_GPU();
  constexpr DType dtypes[] = {DType::bf16};
  for (const std::string_view preset : {"h100-mma", "h100-mma3"}) {
    std::size_t checked = 0;
    test::on_regimes(dtypes, [&](kda::Problem of, DType dtype) {
      INFO(preset);
      const kda::Problem problem = test::with_any_loss(std::move(of));
      kda::RunOptions options = on_tensor_cores(problem, {preset, dtype});
      options.chunk_size = 64;
      if (why_not(problem, options).empty()) checked += check_gradients(problem, options, true);
    });
    CHECK(checked > 20);
  }
}

TEST_CASE("every stage on tensor cores has the bits of its replay", "[tensor_cores][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {40, 128, 176})
    for (const Way& way : ways) {
      if (K > 128 && way.preset != "h100-mma") continue;
      ProblemSpec spec;
      spec.T = 150, spec.K = K, spec.V = 72, spec.B = 2, spec.H = 2, spec.HV = 4, spec.dtype = way.dtype;
      spec.state_v_first = spec.safe_gate = K == 40, spec.qk_l2norm = spec.beta_sigmoid = true;
      const kda::Problem problem = test::make_problem(spec);
      INFO("K " << K << " " << way.preset << " in " << numeric::name_of(way.dtype));
      test::check_stages_of_replay(problem, on_tensor_cores(problem, way));
    }
}

TEST_CASE("every stage of the backward pass on tensor cores has the bits of its replay",
          "[tensor_cores][small][race]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {40, 128})
    for (const Way& way : ways) {
      ProblemSpec spec;
      spec.T = 150, spec.K = K, spec.V = K == 40 ? 24 : 72, spec.H = 2, spec.HV = 4, spec.dtype = way.dtype;
      spec.state_v_first = spec.safe_gate = K == 40, spec.qk_l2norm = spec.beta_sigmoid = true;
      const kda::Problem problem = test::with_loss(test::make_problem(spec));
      INFO("K " << K << " " << way.preset << " in " << numeric::name_of(way.dtype));
      test::check_backward_stages_of_replay(problem, on_tensor_cores(problem, way));
    }
}

TEST_CASE(
    "stages of the backward pass on tensor cores have the bits of their replay in any form of the problem",
    "[tensor_cores][small]") {
  KDA_CHECK_NEEDS_GPU();
  const auto check = [](const kda::Problem& problem, const Way& way, const char* decay) {
    INFO(way.preset << " in " << numeric::name_of(way.dtype) << ", " << decay);
    kda::RunOptions options = on_tensor_cores(problem, way);
    kda::set_axis(options.arithmetic, std::string("decay=") + decay);
    test::check_backward_stages_of_replay(problem, options);
  };
  for (const char* const decay : {"anchor-pair", "anchor-first", "anchor-mid"})
    for (const Way& way : ways) {
      ProblemSpec packed = test::packed_spec();
      packed.dtype = way.dtype, packed.HV = 4;
      check(test::with_loss(test::make_problem(packed)), way, decay);
    }
  for (const std::size_t K : {1, 33, 64, 100})
    for (const std::size_t V : {3, 33, 64, 130}) {
      ProblemSpec spec = test::spec_with_options(K % 2 == 0 ? kda::Gate::softplus : kda::Gate::lower_bound,
                                                 static_cast<int>(K + V) % 64);
      spec.K = K, spec.V = V, spec.T = 1 + (K * 7 + V) % 180, spec.B = 1 + V % 2, spec.H = 1 + K % 2,
      spec.HV = spec.H * (1 + V % 3);
      INFO("K " << K << " V " << V << " T " << spec.T);
      for (const Way& way : both_presets(K + V)) {
        spec.dtype = way.dtype;
        kda::Problem problem = test::with_loss(test::make_problem(spec));
        if (V == 3) problem.output_gradient.reset();
        if (V == 33) problem.state_gradient.reset();
        check(problem, way, K % 2 == 0 ? "anchor-pair" : "anchor-mid");
      }
    }
}

TEST_CASE("inputs that are stored otherwise than computed are split on tensor cores, too",
          "[tensor_cores][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 100, spec.K = 48, spec.V = 40, spec.qk_l2norm = true;
  for (const DType stored : {DType::fp32, DType::bf16})
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      spec.dtype = stored;
      check_replay(test::make_problem(spec), {"h100-mma3", dtype});
    }
}

TEST_CASE("what gpu-chunk lacks on tensor cores it says") {
  ProblemSpec spec;
  spec.dtype = DType::bf16;
  const kda::Problem problem = test::make_problem(spec);
  const auto reason = [&](const kda::RunOptions& options) { return why_not(problem, options); };
  const Way narrow{"h100-mma", DType::bf16}, split{"h100-mma3", DType::bf16};
  kda::RunOptions options = on_tensor_cores(problem, narrow);
  kda::set_axis(options.arithmetic, "tail=suffix");
  CHECK(reason(options).find("preset h100-mma,") != std::string::npos);
  options = on_tensor_cores(problem, split);
  kda::set_axis(options.arithmetic, "tail=difference");
  CHECK(reason(options).find("preset h100-mma3,") != std::string::npos);
  options = on_tensor_cores(problem, narrow);
  kda::set_axis(options.arithmetic, "decay=pair");
  CHECK(reason(options).find("anchor-pair:16") != std::string::npos);
  CHECK(reason(on_tensor_cores(problem, {"h100-mma", DType::fp32})).find("bf16 or fp16") !=
        std::string::npos);
  CHECK(reason(on_tensor_cores(problem, {"h100-mma", DType::fp16})).find("in that dtype") !=
        std::string::npos);
  if (!kda::gpu_unavailable().empty()) return;
  spec.K = 129;
  const kda::Problem wide = test::make_problem(spec);
  const kda::RunOptions wide_split = on_tensor_cores(wide, split),
                        wide_narrow = on_tensor_cores(wide, narrow);
  CHECK(why_not(wide, wide_split).find("K up to 128") != std::string::npos);
  CHECK(why_not(wide, wide_narrow).empty());
  const auto gradients = [](const kda::Problem& of, const kda::RunOptions& by) {
    return kda::gpu_lacks_gradients(by.arithmetic, of.dimensions());
  };
  CHECK(gradients(wide, wide_narrow).find("K above 128") != std::string::npos);
  CHECK(gradients(problem, on_tensor_cores(problem, narrow)).empty());
}

}  // namespace tensor_cores_tests

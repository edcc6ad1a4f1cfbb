// The kernels of the CPU compiled for a GPU: the same bits, in every arithmetic, whatever the problem.
#include <cstring>

#include "hypotheses/spread.hpp"
#include "kda/variants/gpu_emulation.hpp"
#include "support/gpu.hpp"
#include "support/gpu_problems.hpp"

namespace cpu_kernels_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

std::size_t differing(const kda::Tensors& gpu, const kda::Tensors& cpu) {
  std::size_t count = 0;
  for (const auto& [name, of_cpu] : cpu) {
    const tensor::Tensor& of_gpu = gpu.at(name);
    REQUIRE(of_gpu.dtype() == of_cpu.dtype());
    const std::size_t width = numeric::format_of(of_cpu.dtype()).bytes;
    for (std::size_t i = 0; i < of_cpu.size(); ++i)
      count += std::memcmp(of_gpu.at(i), of_cpu.at(i), width) != 0;
  }
  return count;
}

/// Elements that differ between the CPU's answer and the GPU's to the same question; -1: the GPU cannot.
long differing(const kda::Problem& problem, std::string_view name, kda::RunOptions options, kda::Pass pass) {
  const kda::Variant& variant = kda::variant_named(name);
  const kda::Emulated wanted{&variant, &options, pass};
  if (!kda::not_emulated_on_gpu(wanted, problem).empty()) return -1;
  kda::Tensors gpu;
  kda::emulate_on_gpu(problem, {wanted}, [&](std::size_t, const kda::AnswerOnGpu& answer) {
    gpu = kda::downloaded(answer, problem);
  });
  options.threads = 16;
  return static_cast<long>(differing(gpu, kda::run_pass(pass, variant, problem, options)));
}

/// In an arithmetic of these words, both forms and, where there is a loss, both passes.
void check(const kda::Problem& problem, DType dtype, const std::vector<std::string>& words = {}) {
  for (const std::string_view name : {"recurrent", "chunk"}) {
    kda::RunOptions options = test::default_options(problem, name, dtype);
    bool has_all = true;
    for (const std::string& word : words) {
      has_all = has_all && kda::has_axis(kda::variant_named(name).axes, word);
      if (has_all) kda::set_axis(options.arithmetic, word);
    }
    if (!has_all || !kda::unsupported(options.arithmetic, dtype).empty()) continue;
    INFO(name << " in " << numeric::name_of(dtype) << ", " << (words.empty() ? "default" : words.front()));
    CHECK(differing(problem, name, options, kda::Pass::forward) == 0);
    if (!problem.has_loss()) continue;
    INFO("gradients");
    const long of_gradients = differing(problem, name, options, kda::Pass::backward);
    CHECK((of_gradients == 0 || (of_gradients < 0 && problem.dimensions().V > 256)));
  }
}

}  // namespace

TEST_CASE("CPU kernels on a GPU give the same bits in every arithmetic", "[emulation][small]") {
  KDA_CHECK_NEEDS_GPU();
  std::vector<std::string> words{"contraction=separate",
                                 "exponential=exact",
                                 "exponential=cuda",
                                 "exponential=cuda-fast",
                                 "exponential=exp2-scaled",
                                 "exponential=flush",
                                 "reduction=sequential",
                                 "reduction=pairwise",
                                 "reduction=tree:8",
                                 "reduction=tree:32",
                                 "reduction=tree:64",
                                 "reduction=tree:100",
                                 "reduction=blocks:16",
                                 "reduction=blocks:5",
                                 "reduction=simt",
                                 "reduction=mma:25",
                                 "reduction=mma:24",
                                 "reduction=exact",
                                 "decay=pair",
                                 "decay=pair-late",
                                 "decay=anchor-pair:32",
                                 "decay=anchor-first:16",
                                 "decay=anchor-mid:16",
                                 "decay=anchor-mid:64",
                                 "decay=factored:16",
                                 "decay=clamp",
                                 "inverse=substitution",
                                 "inverse=blocks:16",
                                 "inverse=blocks:32",
                                 "inverse=doubling:16",
                                 "inverse=horner:16",
                                 "tail=suffix",
                                 "storage=none",
                                 "storage=fla",
                                 "storage=flash-kda",
                                 "h100"};
  for (const char* const stage : {"products", "normalised", "decay", "g_cumsum", "prediction", "carry"})
    for (const char* const format : {"bf16", "fp16", "tf32"})
      words.push_back(std::string("storage=") + format + "@" + stage);
  ProblemSpec spec;
  spec.T = 100, spec.K = 48, spec.V = 40, spec.qk_l2norm = true;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    spec.dtype = dtype;
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    for (const std::string& word : words) check(problem, dtype, {word});
    check(problem, dtype, {"decay=pair", "reduction=tree:8", "tail=suffix", "inverse=doubling:16"});
    check(problem, dtype, {"reduction=pairwise", "inverse=substitution", "tail=suffix"});
  }
}

TEST_CASE("CPU kernels on a GPU give the same bits with every option, shape and length",
          "[emulation][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::with_every_option(
      90,
      [](ProblemSpec spec, std::size_t options) {
        spec.dtype = options % 2 == 0 ? DType::bf16 : DType::fp32;
        check(test::with_loss(test::make_problem(spec, options)), spec.dtype);
      },
      3);
  test::in_shapes({1, 5, 33, 64, 100, 128, 256}, {1, 3, 33, 70, 128}, 17, 130,
                  [](const ProblemSpec& spec, std::uint64_t seed) {
                    check(test::with_loss(test::make_problem(spec, seed)), DType::fp32);
                  });
  ProblemSpec packed = test::packed_spec();
  for (const int chunk : {16, 32, 64}) {
    packed.chunk_size = chunk;
    check(test::with_loss(test::make_problem(packed)), DType::fp32);
  }
}

TEST_CASE("CPU kernels on a GPU give the same bits with a state in registers and products of large tiles",
          "[emulation][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {64, 128})
    for (const std::size_t V : {5, 70, 128})
      for (const char* const contraction : {"contraction=fused", "contraction=separate"})
        for (const char* const reduction : {"reduction=sequential", "reduction=pairwise", "reduction=tree:32",
                                            "reduction=blocks:16", "reduction=blocks:5"}) {
          ProblemSpec spec;
          spec.K = K, spec.V = V, spec.T = 67 + V % 64, spec.B = 2, spec.qk_l2norm = true;
          spec.initial_state = V != 70, spec.state_v_first = V == 128;
          INFO("K " << K << " V " << V << ", " << contraction << ", " << reduction);
          check(test::with_loss(test::make_problem(spec, K + V)), DType::bf16, {contraction, reduction});
        }
  ProblemSpec packed = test::packed_spec();
  packed.K = 64, packed.V = 64;
  for (const char* const reduction : {"reduction=sequential", "reduction=pairwise", "reduction=tree:32"})
    check(test::with_loss(test::make_problem(packed)), DType::fp32, {reduction});
}

TEST_CASE("CPU kernels on a GPU go through every way to compute on a few problems", "[emulation][race]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 40, spec.K = 20, spec.V = 18, spec.qk_l2norm = true, spec.chunk_size = 32;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  for (const char* const decay : {"decay=pair", "decay=anchor-mid:16", "decay=anchor-pair:16"})
    check(problem, DType::bf16, {decay, "inverse=doubling:16", "tail=suffix", "reduction=blocks:16"});
  check(problem, DType::fp32, {"reduction=pairwise"});
  check(problem, DType::fp32, {"inverse=blocks:16"});
}

TEST_CASE("twins on a GPU have the bits of those on a CPU", "[emulation]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_fixtures([](kda::Problem of) {
    const kda::Problem problem = test::with_any_loss(std::move(of));
    if (problem.dtype() == DType::fp64) return;
    for (const numeric::ComputeFormat compute :
         {numeric::ComputeFormat::fp32, numeric::ComputeFormat::tf32, numeric::ComputeFormat::bf16})
      for (const kda::Pass pass : kda::every_pass)
        for (const hypotheses::Twin& twin :
             hypotheses::spread_of_class(problem, pass, compute, problem.dtype()).twins) {
          INFO(kda::name_of(pass) << ": " << kda::describe(twin.options.arithmetic, twin.variant->axes));
          if (pass == kda::Pass::backward && problem.dimensions().has_scalar_decay) continue;
          CHECK(differing(problem, twin.variant->name, twin.options, pass) == 0);
        }
  });
}

TEST_CASE("twins that run side by side on a GPU answer as each alone, and come in their order",
          "[emulation][race]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec;
  spec.T = 200, spec.H = 2, spec.HV = 4, spec.K = 20, spec.V = 36, spec.qk_l2norm = true;
  spec.dtype = DType::bf16;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  for (const kda::Pass pass : kda::every_pass) {
    INFO(kda::name_of(pass));
    const std::vector<hypotheses::Twin> family =
        hypotheses::spread_of_class(problem, pass, numeric::ComputeFormat::bf16, DType::bf16).twins;
    std::vector<kda::Emulated> wanted;
    for (const hypotheses::Twin& twin : family) wanted.push_back({twin.variant, &twin.options, pass});
    REQUIRE(wanted.size() > 6);
    std::size_t next = 0;
    kda::emulate_on_gpu(problem, wanted, [&](std::size_t i, const kda::AnswerOnGpu& answer) {
      REQUIRE(i == next++);
      CHECK(differing(kda::downloaded(answer, problem),
                      kda::run_pass(pass, *family[i].variant, problem, family[i].options)) == 0);
    });
    CHECK(next == wanted.size());
  }
}

}  // namespace cpu_kernels_tests

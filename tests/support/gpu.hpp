// Tests that need a GPU, and what they are held to.
#pragma once

#include <cstring>
#include <string_view>

#include "kda/gpu/device.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/problems.hpp"

/// Skips the test, with the reason, where no kernel can run.
#define KDA_CHECK_NEEDS_GPU()                                                    \
  do {                                                                           \
    const std::string reason_ = kda_check::kda::gpu_unavailable();               \
    if (!reason_.empty()) KDA_CHECK_SKIP("GPU variants cannot run: " + reason_); \
  } while (false)

namespace kda_check::test {

inline constexpr std::string_view gpu_variants[] = {"gpu-recurrent", "gpu-chunk"};

/// The answer of the CPU variant that computes as a GPU variant does.
inline kda::Answer replayed(const kda::Problem& problem, std::string_view gpu_variant,
                            kda::RunOptions options) {
  options.threads = 16;
  return kda::variant_named(kda::variant_named(gpu_variant).replay).run(problem, options);
}

/// Elements of both tensors in which two answers differ.
inline std::size_t differing(const kda::Answer& gpu, const kda::Answer& cpu) {
  std::size_t count = 0;
  const auto compare = [&](const tensor::Tensor& a, const tensor::Tensor& b) {
    const std::size_t width = numeric::format_of(a.dtype()).bytes;
    for (std::size_t i = 0; i < a.size(); ++i) count += std::memcmp(a.at(i), b.at(i), width) != 0;
  };
  compare(gpu.o, cpu.o);
  compare(gpu.final_state, cpu.final_state);
  return count;
}

/// ... a GPU variant and its replay.
inline std::size_t differing_from_replay(const kda::Problem& problem, std::string_view gpu_variant,
                                         const kda::RunOptions& options) {
  return differing(run(problem, gpu_variant, options), replayed(problem, gpu_variant, options));
}

/// Every stage of the chunk form, of one pass, has the bits of its replay.
inline void check_same_stages(const kda::StageTensors& gpu, const kda::StageTensors& cpu, bool backward) {
  for (const kda::StageRow& row : kda::stages(kda::Passes::both)) {
    if (row.backward != backward) continue;
    INFO(row.name);
    const tensor::Tensor &a = gpu[static_cast<std::size_t>(row.stage)],
                         &b = cpu[static_cast<std::size_t>(row.stage)];
    REQUIRE(a.size() == b.size());
    CHECK(std::memcmp(a.data(), b.data(), a.bytes()) == 0);
  }
}
/// ... so has the answer beside them.
inline void check_stages_of_replay(const kda::Problem& problem, kda::RunOptions options) {
  kda::StageTensors gpu = kda::allocate_stages(problem, options.chunk_size, kda::state_dtype(options.dtype)),
                    cpu = kda::allocate_stages(problem, options.chunk_size, kda::state_dtype(options.dtype));
  options.stages.computed = &gpu;
  const kda::Answer answer = run(problem, "gpu-chunk", options);
  options.stages.computed = &cpu;
  CHECK(differing(answer, replayed(problem, "gpu-chunk", options)) == 0);
  check_same_stages(gpu, cpu, false);
}
/// The stages of the backward pass, and the gradients beside them.
inline void check_backward_stages_of_replay(const kda::Problem& problem, kda::RunOptions options) {
  const kda::Variant& variant = kda::variant_named("gpu-chunk");
  const auto run = [&](const kda::Variant& by, kda::StageTensors& stages) {
    stages =
        kda::allocate_stages(problem, options.chunk_size, kda::state_dtype(options.dtype), kda::Passes::both);
    options.stages.computed = &stages, options.threads = 16;
    return by.run_backward(problem, options);
  };
  kda::StageTensors gpu, cpu;
  const kda::GradientTensors found = run(variant, gpu);
  CHECK(differing(found, run(kda::variant_named(variant.replay), cpu)) == 0);
  check_same_stages(gpu, cpu, true);
}

}  // namespace kda_check::test

// Rows like those of the GPU variants that answer on any machine: what they "compute" is what their replay
// does.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "kda/variants/variants.hpp"
#include "support/problems.hpp"

namespace kda_check::test {

/// As a GPU variant: no other arithmetic, no stages from elsewhere.
inline kda::RunOptions options_as(const char* row, const kda::Problem& problem,
                                  const kda::RunOptions& options) {
  if (const std::string reason = kda::variant_named(row).unsupported(problem, options); !reason.empty())
    throw std::logic_error("a GPU was asked for what it lacks: " + reason);
  kda::RunOptions on_cpu = options;
  // fp64: the exponential of CUDA exists on a GPU only. Any other will do here.
  if (options.dtype == numeric::DType::fp64) on_cpu.arithmetic.exponential = kda::Exponential::exact;
  return on_cpu;
}
inline kda::Answer answer_as(const char* row, const kda::Problem& problem, const kda::RunOptions& options) {
  return kda::variant_named(kda::variant_named(row).replay).run(problem, options_as(row, problem, options));
}
inline kda::GradientTensors gradients_as(const char* row, const kda::Problem& problem,
                                         const kda::RunOptions& options) {
  return kda::variant_named(kda::variant_named(row).replay)
      .run_backward(problem, options_as(row, problem, options));
}

inline constexpr std::size_t wrong_element = 11;
/// Where the last bit of one element is another.
enum class Wrong { nothing, o, dv };

template <bool chunk, Wrong wrong>
kda::Variant made_up_gpu() {
  static constexpr const char* name = chunk ? "gpu-chunk" : "gpu-recurrent";
  kda::Variant row = kda::variant_named(name);
  row.unavailable = [] { return std::string(); };
  row.run = [](const kda::Problem& problem, const kda::RunOptions& options) {
    kda::Answer answer = answer_as(name, problem, options);
    if (wrong == Wrong::o) answer.o.at(wrong_element)[0] ^= std::byte{1};
    return answer;
  };
  row.run_backward = [](const kda::Problem& problem, const kda::RunOptions& options) {
    kda::GradientTensors gradients = gradients_as(name, problem, options);
    if (wrong == Wrong::dv)
      gradients[static_cast<std::size_t>(kda::Gradient::dv)].at(wrong_element)[0] ^= std::byte{1};
    return gradients;
  };
  return row;
}
template <Wrong wrong = Wrong::nothing>
kda::Variant made_up_gpu_chunk() {
  return made_up_gpu<true, wrong>();
}
template <Wrong wrong = Wrong::nothing>
kda::Variant made_up_gpu_recurrent() {
  return made_up_gpu<false, wrong>();
}

/// A GPU variant on a machine without one.
inline kda::Variant absent_gpu_chunk() {
  kda::Variant row = kda::variant_named("gpu-chunk");
  row.unavailable = [] { return std::string("no device: none was made up"); };
  return row;
}

/// The variants of any machine and these.
inline std::vector<kda::Variant> cpu_variants_and(std::vector<kda::Variant> rows) {
  std::vector<kda::Variant> list = cpu_variants();
  list.insert(list.end(), rows.begin(), rows.end());
  return list;
}

}  // namespace kda_check::test

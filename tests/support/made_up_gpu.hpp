// Rows like those of the GPU variants that answer on any machine: what they "compute" is what their replay
// does.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "kda/variants.hpp"
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

inline constexpr std::size_t wrong_element = 11;

/// `wrong`: the last bit of one element of o is another.
template <bool wrong>
kda::Variant made_up_gpu_chunk() {
  kda::Variant row = kda::variant_named("gpu-chunk");
  row.unavailable = [] { return std::string(); };
  row.run = [](const kda::Problem& problem, const kda::RunOptions& options) {
    kda::Answer answer = answer_as("gpu-chunk", problem, options);
    if (wrong) answer.o.at(wrong_element)[0] ^= std::byte{1};
    return answer;
  };
  return row;
}

/// `wrong`: the last bit of one element of dv is another.
template <bool wrong = false>
kda::Variant made_up_gpu_recurrent() {
  kda::Variant row = kda::variant_named("gpu-recurrent");
  row.unavailable = [] { return std::string(); };
  row.run = [](const kda::Problem& problem, const kda::RunOptions& options) {
    return answer_as("gpu-recurrent", problem, options);
  };
  row.run_backward = [](const kda::Problem& problem, const kda::RunOptions& options) {
    kda::GradientTensors gradients =
        kda::run_recurrent_backward(problem, options_as("gpu-recurrent", problem, options));
    if (wrong) gradients[static_cast<std::size_t>(kda::Gradient::dv)].at(wrong_element)[0] ^= std::byte{1};
    return gradients;
  };
  return row;
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

// What stays in the memory of the GPU, behind plain data.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "kda/terms/gradient.hpp"
#include "numeric/formats.hpp"

namespace kda_check::kda {

/// Until nobody holds it any more.
struct TensorOnGpu {
  std::shared_ptr<const void> memory = {};
  numeric::DType dtype = numeric::DType::fp32;
  std::size_t elements = 0;
};

/// Whose log decays are a factor longer than the problem's, in each head.
enum class ScaledDecays : unsigned char { none, slowest, all };

struct AnswerOnGpu {
  TensorOnGpu o, final_state;                           ///< forwards
  std::array<TensorOnGpu, gradient_count> gradients{};  ///< backwards, by Gradient: those a problem has
  /// Where decays are scaled, by value head: the one that lasts longest, of those that decay at all; below 0
  /// none does, and nothing is scaled.
  std::vector<int> slowest = {};
};

}  // namespace kda_check::kda

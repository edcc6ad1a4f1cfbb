// One query head of a problem, as every twin of a family solves it.
#pragma once

#include <vector>

#include "engine/twin_family.hpp"
#include "judge/twin_test.hpp"

namespace kda_check::engine {

/// That query head and its value heads as a problem of their own.
kda::Problem one_query_head(const kda::Problem& problem, std::size_t query_head);

/// What each twin answers, in the order of the family.
std::vector<kda::Tensors> answers_of(const std::vector<Twin>& family, kda::Pass pass,
                                     const kda::Problem& problem);

/// In fp32 a biased exponential is systematic and legitimate, and so is a slope.
constexpr bool slopes_judge(numeric::ComputeFormat compute) {
  return compute != numeric::ComputeFormat::fp32;
}

enum class TwinsOf : unsigned char { outputs, gradients, stages };
constexpr TwinsOf twins_of(kda::Pass pass) {
  return pass == kda::Pass::forward ? TwinsOf::outputs : TwinsOf::gradients;
}

/// For answers of that precision with tensors of that element type.
judge::TwinSetting twin_setting(TwinsOf what, const judge::RowLayout& layout, numeric::ComputeFormat compute,
                                numeric::DType dtype, std::size_t twins, std::size_t answers);

}  // namespace kda_check::engine

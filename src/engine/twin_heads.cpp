#include "engine/twin_heads.hpp"

#include <algorithm>
#include <cmath>

#include "kda/heads.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::engine {

kda::Problem one_query_head(const kda::Problem& problem, std::size_t query_head) {
  const std::size_t group = problem.heads_per_group();
  std::vector<std::size_t> heads(group);
  for (std::size_t i = 0; i < group; ++i) heads[i] = query_head * group + i;
  return kda::with_heads(problem, std::vector<std::size_t>{query_head}, heads);
}

std::vector<kda::Tensors> answers_of(const std::vector<Twin>& family, kda::Pass pass,
                                     const kda::Problem& problem) {
  std::vector<kda::Tensors> answers;
  for (const Twin& twin : family)
    answers.push_back(kda::run_pass(pass, *twin.variant, problem, twin.options));
  return answers;
}

namespace {

/// How many times farther than its twins an answer may be (docs/twins.md, "Calibration"). Errors of a few
/// roundings, as of fp32, have long tails, and so have gradients, which end in sums that cancel.
double most_times_twins(TwinsOf what, bool in_fp32) {
  if (what == TwinsOf::outputs) return in_fp32 ? 2.5 : 1.9;
  return in_fp32 ? 3 : 2.5;
}

}  // namespace

judge::TwinSetting twin_setting(TwinsOf what, const judge::RowLayout& layout, numeric::ComputeFormat compute,
                                numeric::DType dtype, std::size_t twins, std::size_t answers) {
  const numeric::Format& stored = numeric::format_of(dtype);
  const double storage_unit = std::ldexp(1.0, -stored.precision);
  // Kernels flush what is below the normal numbers that they compute in, or do not.
  const numeric::DType range =
      compute == numeric::ComputeFormat::fp64 ? numeric::DType::fp64 : numeric::DType::fp32;
  const double least_error =
      std::max(numeric::format_of(range).smallest_normal(), stored.smallest_step() / 2);
  const bool in_fp32 = compute == numeric::ComputeFormat::fp32;
  judge::TwinSetting setting{layout,
                             twins,
                             answers,
                             storage_unit,
                             slopes_judge(compute) ? 0x1p-11 : 0.0,
                             most_times_twins(what, in_fp32)};
  setting.least_error = least_error;
  return setting;
}

}  // namespace kda_check::engine

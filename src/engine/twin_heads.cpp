#include "engine/twin_heads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "engine/alone_on_gpu.hpp"
#include "kda/problem/heads.hpp"
#include "numeric/rounding.hpp"
#include "plan/cost.hpp"

namespace kda_check::engine {

namespace {

kda::Problem query_heads_of(const kda::Problem& problem, std::size_t first, std::size_t count) {
  std::vector<std::size_t> queries(count);
  std::iota(queries.begin(), queries.end(), first);
  return kda::with_heads(problem, queries, kda::value_heads_of(problem, queries));
}

}  // namespace

kda::Problem one_query_head(const kda::Problem& problem, std::size_t query_head) {
  return query_heads_of(problem, query_head, 1);
}

std::size_t one_in_full(const kda::Dimensions& dimensions) {
  constexpr std::size_t fewest = 4, fewest_tokens = 16'384;
  const std::size_t tokens = std::max<std::size_t>(dimensions.B * dimensions.T, 1),
                    heads = std::max(fewest, (fewest_tokens + tokens - 1) / tokens);
  return std::max<std::size_t>(dimensions.H / heads, 1);
}

kda::Tensors answer_of(const Twin& twin, kda::Pass pass, const kda::Problem& problem) {
  return kda::run_pass(pass, *twin.variant, problem, twin.options);
}

Emulations emulations_of(const std::vector<Twin>& family, kda::Pass pass) {
  Emulations wanted;
  for (const Twin& twin : family) wanted.push_back({twin.variant, &twin.options, pass});
  return wanted;
}

void gpu_answers_of(const std::vector<Emulations>& wanted, const kda::Problem& problem, std::size_t first,
                    std::size_t count, const EmulationsSink& sink) {
  std::optional<kda::Problem> part;
  if (count < problem.dimensions().H) part.emplace(query_heads_of(problem, first, count));
  Emulations all;
  for (const Emulations& some : wanted) std::ranges::copy(some, std::back_inserter(all));
  const std::unique_lock one = alone_on_gpu();
  std::size_t which = 0;
  AnswersOnGpu answers{{}, first, count};
  kda::emulate_on_gpu(part ? *part : problem, all, [&](std::size_t, kda::AnswerOnGpu answer) {
    answers.answers.push_back(std::move(answer));
    if (answers.answers.size() < wanted[which].size()) return;
    sink(which++, std::exchange(answers, {{}, first, count}));
  });
}

bool can_answer_on_gpu(const Emulations& wanted, const kda::Problem& problem) {
  return std::ranges::all_of(
      wanted, [&](const kda::Emulated& one) { return kda::not_emulated_on_gpu(one, problem).empty(); });
}

std::size_t heads_for_twins(const plan::Problem& problem, kda::Pass pass, int threads, bool on_gpu,
                            std::size_t budget, std::size_t left) {
  const plan::TwinBytes bytes = plan::twin_bytes(problem, pass, on_gpu);
  if (bytes.kept + bytes.per_head > budget)
    throw Error(ErrorKind::input,
                fmt::format("twins take {:.3g} GB; the memory budget is {:.3g} GB",
                            static_cast<double>(bytes.kept + bytes.per_head) * 1e-9,
                            static_cast<double>(budget) * 1e-9),
                {}, "--memory-limit raises it; with --test off the limits decide alone");
  const std::size_t most = on_gpu ? problem.outline.dimensions.H : static_cast<std::size_t>(threads);
  if (bytes.per_head == 0) return most;
  return std::clamp<std::size_t>((std::max(left, bytes.kept) - bytes.kept) / bytes.per_head, 1, most);
}

double most_times_twins(TwinsOf what, numeric::ComputeFormat compute) {
  const bool in_fp32 = compute == numeric::ComputeFormat::fp32;
  if (what == TwinsOf::outputs) return in_fp32 ? 2.5 : 1.9;
  return in_fp32 ? 3 : 2.5;
}

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
  judge::TwinSetting setting;
  setting.layout = layout, setting.twins = twins, setting.answers = answers;
  setting.storage_unit = storage_unit, setting.operand_unit = numeric::row_of(compute).operand_error / 2;
  if (slopes_judge(compute, dtype)) {
    // A truncated operand of a product, in few rows any rounded one; what an exponential of fp32 is off by.
    constexpr std::size_t few_rows = 64;
    const double of_operands = layout.rows * layout.heads < few_rows ? 0x1p-9 : 0x1p-11;
    setting.slope_floor = in_fp32 ? 0x1p-16 : of_operands;
  }
  setting.factor = most_times_twins(what, compute);
  setting.least_error = least_error;
  return setting;
}

}  // namespace kda_check::engine

#include "engine/stage_twins.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/threads/parallel.hpp"
#include "judge/measures/stage_values.hpp"
#include "kda/head/head_io.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::engine {

namespace {

using explain::StageSetting;
using kda::Stage;
using numeric::ComputeFormat;
using numeric::DType;

std::size_t number_of(Stage stage) { return static_cast<std::size_t>(stage); }

/// A stage of answers that store it alike.
struct TwinStage {
  Stage stage;
  bool in_powers_of_two;
  TwinTensor judged;
};

/// The stages of answers that have the same twins.
struct StageClass {
  ComputeFormat compute;
  DType dtype;
  std::vector<TwinStage> stages = {};

  void add(const StageSetting& setting, const explain::StagedAnswer& answer) {
    for (const kda::StageRow& row : kda::stages(setting.passes)) {
      const tensor::Tensor& tensor = answer.tensors[number_of(row.stage)];
      if (tensor.empty() || tensor.dtype() == DType::fp64) continue;
      const bool are_gates = row.stage == Stage::g_cumsum,
                 in_powers_of_two = are_gates && answer.g_cumsum_in_powers_of_two;
      const auto known = std::ranges::find_if(stages, [&](const TwinStage& one) {
        return one.stage == row.stage && one.judged.dtype == tensor.dtype() &&
               one.in_powers_of_two == in_powers_of_two;
      });
      if (known != stages.end()) {
        known->judged.answers.push_back(&tensor);
        continue;
      }
      judge::RowLayout layout = judge::stage_row_layout(row.stage, setting.problem, setting.chunk_size);
      if (layout.rows == 0) continue;
      const std::size_t heads = layout.heads / setting.problem.dimensions().H;
      stages.push_back({row.stage,
                        in_powers_of_two,
                        {std::string(row.name),
                         std::move(layout),
                         are_gates ? ComputeFormat::fp32 : compute,
                         tensor.dtype(),
                         heads,
                         {&tensor}}});
    }
  }
};

kda::StageTensors stages_of(const Twin& twin, const kda::Problem& part, const StageSetting& setting) {
  kda::StageTensors stages = kda::allocate_stages(part, setting.chunk_size, DType::fp32, setting.passes);
  kda::RunOptions options = twin.options;
  options.stages.computed = &stages;
  twin.variant->run(part, options);
  if (setting.passes == kda::Passes::both) twin.variant->run_backward(part, options);
  return stages;
}

/// Of head `head`, which is number `i` of `part`.
judge::HeadValues values_of(const TwinStage& of, const StageSetting& setting, const kda::Problem& part,
                            const std::vector<kda::StageTensors>& twins, std::size_t head, std::size_t i) {
  const judge::RowLayout& layout = of.judged.layout;
  const judge::RowLayout part_layout = judge::stage_row_layout(of.stage, part, setting.chunk_size);
  const std::span<const double> truth = setting.truths[number_of(of.stage)].hi;
  std::vector<double> exact = judge::HeadRows(truth, layout, head).read_all<double>(layout.rows);
  if (of.in_powers_of_two) judge::to_powers_of_two(exact);
  std::vector<std::vector<float>> fields;
  for (const kda::StageTensors& twin : twins) {
    fields.push_back(judge::HeadRows(twin[number_of(of.stage)], part_layout, i).read_all<float>(layout.rows));
    if (of.in_powers_of_two) judge::to_powers_of_two(fields.back());
  }
  for (const tensor::Tensor* const answer : of.judged.answers)
    fields.push_back(judge::HeadRows(*answer, layout, head).read_all<float>(layout.rows));
  judge::clear_what_does_not_count(exact, fields, layout);
  judge::HeadValues values{judge::HeadRows(std::move(exact), layout.width)};
  for (std::vector<float>& field : fields) {
    values.fields.emplace_back(std::move(field), layout.width);
    values.fields.back().store_as(of.judged.dtype);
  }
  return values;
}

}  // namespace

TwinResults judge_stages(const StageSetting& setting, const std::vector<StagesToJudge>& answers,
                         int threads_of_twins) {
  std::vector<StageClass> classes;
  for (const StagesToJudge& answer : answers) {
    const Answered& who = *answer.who;
    if (who.compute == ComputeFormat::fp64) continue;
    auto known = std::ranges::find_if(
        classes, [&](const StageClass& one) { return one.compute == who.compute && one.dtype == who.dtype; });
    if (known == classes.end()) known = classes.insert(known, {who.compute, who.dtype});
    known->add(setting, *answer.stages);
  }
  TwinResults results;
  for (StageClass& one : classes) {
    const std::vector<Twin> family =
        hypotheses::twins_of_stages(setting.problem, one.compute, one.dtype, setting.chunk_size);
    if (family.size() < judge::fewest_twins) continue;
    std::vector<const TwinTensor*> tensors;
    for (TwinStage& stage : one.stages) {
      stage.judged.begin(TwinsOf::stages, family.size());
      tensors.push_back(&stage.judged);
    }
    parallel_for(setting.problem.dimensions().H, threads_of_twins, [&](std::size_t query_head, int) {
      const kda::Problem part = one_query_head(setting.problem, query_head);
      std::vector<kda::StageTensors> twins;
      for (const Twin& twin : family) twins.push_back(stages_of(twin, part, setting));
      for (TwinStage& stage : one.stages)
        stage.judged.measure(query_head, [&](std::size_t head, std::size_t i) {
          return values_of(stage, setting, part, twins, head, i);
        });
    });
    conclude(tensors, threads_of_twins, results);
  }
  return results;
}

std::string gates_text(const StageSetting& setting, const tensor::Tensor& sums, bool in_powers_of_two) {
  constexpr double least_share_explained = 0.5;  // of the squares of the error
  if (setting.problem.options.gate != kda::Gate::softplus) return {};
  const kda::HeadReader<double> reader(setting.problem);
  const judge::RowLayout layout =
      judge::stage_row_layout(Stage::g_cumsum, setting.problem, setting.chunk_size);
  std::vector<double> exact = setting.truths[number_of(Stage::g_cumsum)].hi;
  if (in_powers_of_two) judge::to_powers_of_two(exact);
  // Of errors e and of the direction d that gates move the sums in.
  double errors = 0, along = 0, directions = 0;
  for (std::size_t head = 0; head < layout.heads; ++head) {
    std::vector<double> unit{0x1p-24 * numeric::exp(reader.log_amplitude(head))};
    if (in_powers_of_two) judge::to_powers_of_two(unit);
    for (std::size_t n = 0; n + 1 < layout.starts.size(); ++n)
      for (std::size_t r = layout.starts[n]; r < layout.starts[n + 1]; ++r) {
        const auto gates = static_cast<double>((r - layout.starts[n]) % layout.chunk + 1);
        for (std::size_t v = 0; v < layout.width; ++v) {
          const std::size_t at = layout.element(r, head, v);
          const double direction = gates * unit.front();
          directions += direction * direction;
          if (!std::isfinite(exact[at])) continue;
          const double error = sums.value(at) - exact[at];
          errors += error * error, along += error * direction;
        }
      }
  }
  if (directions == 0 || !(along * along >= least_share_explained * errors * directions)) return {};
  return fmt::format("; as gates make that are off by {:.2g} x 2^-24 exp(A_log): softplus as log2(1 + 2^x)?",
                     along / directions);
}

int threads_for_stage_twins(const kda::Problem& problem, std::size_t chunk_size, kda::Passes passes,
                            int threads, std::size_t budget) {
  constexpr std::size_t fields = 16;  // a family and what adding up its errors takes
  const std::size_t held = explain::stage_bytes(problem, chunk_size, passes),
                    per_thread = fields * sizeof(float) *
                                 explain::stage_elements(problem, chunk_size, passes) /
                                 problem.dimensions().H;
  if (held + per_thread > budget)
    throw Error(ErrorKind::input,
                fmt::format("stages and those of their twins take {}, the budget is {}",
                            size_text(held + per_thread), size_text(budget)),
                {}, "--memory-limit raises it; --test off needs less");
  if (per_thread == 0) return threads;
  return static_cast<int>(
      std::clamp<std::size_t>((budget - held) / per_thread, 1, static_cast<std::size_t>(threads)));
}

}  // namespace kda_check::engine

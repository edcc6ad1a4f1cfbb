// `run --stages`: the intermediates of the chunk form, of runs and as recorded, against the truth.
#include <fmt/format.h>

#include <algorithm>

#include "base/names.hpp"
#include "engine/findings.hpp"
#include "engine/judged.hpp"
#include "engine/stage_rows.hpp"
#include "engine/stage_twins.hpp"
#include "explain/stages/stage_runs.hpp"
#include "judge/measures/metrics.hpp"
#include "judge/verdict.hpp"
#include "plan/replay.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using explain::StagedAnswer;
using explain::StageSetting;
using report::Show;
using report::Value;

/// The stages of one case.
struct Staged {
  const plan::Case* item;
  Answered who;
  StagedAnswer answer;
};

double metric(const judge::Measures& measures, std::string_view name) {
  return judge::find_metric(name)->value(measures);
}

std::vector<Value> row_of(const explain::StageError& error, const Staged& staged, const StageSetting& setting,
                          const report::TensorResult* judged) {
  const judge::Measures& m = error.measures;
  const std::string name(kda::row_of(error.stage).name);
  const Value nothing;
  Value own_rms, own_ulp;
  for (const explain::StageError& own : staged.answer.own)
    if (own.stage == error.stage)
      own_rms = metric(own.measures, "rms_ratio"), own_ulp = metric(own.measures, "scaled_ulp");
  const tensor::Tensor& tensor = staged.answer.tensors[static_cast<std::size_t>(error.stage)];
  std::string worst;
  if (m.scaled_ulp.point.element != judge::no_element)
    worst = kda::place(name, tensor::index_of(tensor.shape(), m.scaled_ulp.point.element),
                       setting.problem.options.state_v_first);
  const bool compared = m.finite > 0;
  return {name,
          judged != nullptr ? Value(std::string(judge::name_of(judged->verdict))) : nothing,
          std::string(numeric::name_of(error.dtype)),
          compared ? Value(metric(m, "rms_ratio")) : nothing,
          compared ? Value(metric(m, "scaled_ulp")) : nothing,
          explain::agreement_limit(staged.answer, error.stage, error.dtype, setting),
          judged != nullptr ? Value(*judged->twins) : nothing,
          own_rms,
          own_ulp,
          error.cancelled_bits,
          compared ? Value(metric(m, "max_ulp")) : nothing,
          static_cast<std::int64_t>(m.finite),
          static_cast<std::int64_t>(m.mismatched_classes()),
          worst,
          judged != nullptr ? Value(judged->reason) : nothing};
}

/// Nothing where twins say nothing. Beside them a stage fails that is not finite where it should be.
std::optional<report::TensorResult> judged_stage(const explain::StageError& error, const Staged& staged,
                                                 const StageSetting& setting, const TwinResults& results) {
  const tensor::Tensor& tensor = staged.answer.tensors[static_cast<std::size_t>(error.stage)];
  const auto twins = results.find(&tensor);
  if (twins == results.end()) return std::nullopt;
  report::TensorResult result;
  result.name = kda::row_of(error.stage).name;
  judge::Evidence evidence;
  evidence.zeros_decide = true, evidence.floor = HUGE_VAL;  // a stage may be small, and nothing
  evidence.twins = twins->second;
  evidence.computation_is_known = evidence.computation_is_whole = true;  // chunks of its size
  const plan::Names& asked = staged.item->tensors;
  const auto stage = static_cast<std::size_t>(std::ranges::find(asked, result.name) - asked.begin());
  if (stage < asked.size()) evidence.by_hand = staged.item->limits[stage];
  const judge::Judgement judgement = judge::judge(error.measures, {{"nonfinite", 0, "exact"}}, evidence);
  result.verdict = judgement.verdict, result.reason = judgement.reason, result.limits = judgement.limits;
  result.twins = twins->second;
  if (error.stage == kda::Stage::g_cumsum && result.verdict != judge::Verdict::pass &&
      twins->second.ratio > 1)
    result.reason += gates_text(setting, tensor, staged.answer.g_cumsum_in_powers_of_two);
  return result;
}

StagedAnswer recorded(const Context& context, const plan::Answer& who, kda::Passes passes) {
  const fixture::ExpectedGroup& group = *context.plan().source->expected_named(who.name);
  StagedAnswer answer;
  answer.recorded = true;
  answer.compute = answer.backward_compute =
      group.compute_claim(context.plan().outline.operand_dtype()).format;
  answer.g_cumsum_in_powers_of_two = !group.natural_g_cumsum;
  for (const kda::StageRow& row : kda::stages(passes))
    for (const fixture::DatasetInfo& info : group.stages)
      if (fixture::leaf(info.path) == row.name)
        answer.tensors[static_cast<std::size_t>(row.stage)] = context.source().read(info);
  return answer;
}

StagedAnswer staged(Context& context, const plan::Answer& who, const StageSetting& setting) {
  if (!who.is_computed()) return recorded(context, who, setting.passes);
  context.progress(fmt::format("stages of {} {}", who.name, numeric::name_of(who.dtype)));
  // No GPU takes stages from elsewhere; its replay does.
  const bool has_replay = plan::why_no_replay(*who.variant, context.plan().outline, who.options).empty();
  return explain::staged(setting, *who.variant, has_replay ? &plan::on_cpu(*who.variant) : nullptr,
                         context.options_of(who));
}

/// Where it stops agreeing with each recorded answer.
std::vector<std::string> disagreements(const Staged& mine, const std::vector<Staged>& all,
                                       const StageSetting& setting) {
  std::vector<std::string> lines;
  for (const Staged& other : all) {
    if (mine.answer.recorded || !other.answer.recorded) continue;
    const auto limit = [&](kda::Stage stage, numeric::DType dtype) {
      return explain::agreement_limit(mine.answer, stage, dtype, setting) +
             explain::agreement_limit(other.answer, stage, dtype, setting);
    };
    const auto found = explain::first_divergence(mine.answer.view(), other.answer.view(), setting.truths,
                                                 setting.problem, setting.chunk_size, limit);
    lines.push_back(fmt::format("with expected/{}: {}", other.who.name,
                                found ? "first disagrees at " + explain::describe(*found)
                                      : "every stage agrees within what both formats may lose"));
  }
  return lines;
}

report::Entry entry_of(const Staged& staged, const std::vector<Staged>& all, const StageSetting& setting,
                       const TwinResults& twins) {
  const Answered& who = staged.who;
  const auto limit = [&](kda::Stage stage, numeric::DType dtype) {
    return explain::agreement_limit(staged.answer, stage, dtype, setting);
  };
  const auto found = explain::first_divergence(staged.answer.view(), setting.truths, setting.problem,
                                               setting.chunk_size, limit);
  const std::string dtype(numeric::name_of(who.dtype)), compute(numeric::row_of(staged.answer.compute).name);
  const std::string divergence = found ? explain::describe(*found) : std::string();
  report::Entry entry;
  entry.values = {who.name,
                  staged.answer.recorded,
                  dtype,
                  compute,
                  who.arithmetic,
                  divergence,
                  divergence.empty() ? "no stage leaves the truth by more than its limit"
                                     : "leaves the truth first at " + divergence,
                  disagreements(staged, all, setting),
                  staged.item->repro};
  entry.title = stages_title(entry);
  report::Table table = stages_table();
  report::CaseResult verdict;  // of those that are judged
  for (const explain::StageError& error : explain::stage_errors(
           staged.answer.view(), setting.truths, setting.problem, setting.chunk_size, setting.threads)) {
    std::optional<report::TensorResult> result = judged_stage(error, staged, setting, twins);
    table.rows.push_back(row_of(error, staged, setting, result ? &*result : nullptr));
    if (result) verdict.tensors.push_back(std::move(*result));
  }
  if (!verdict.tensors.empty()) {
    conclude(verdict);
    entry.verdict = verdict.verdict, entry.reason = verdict.reason;
  }
  entry.tables.push_back(std::move(table));
  return entry;
}

}  // namespace

void compare_stages(Context& context, Findings& findings) {
  const plan::Problem& problem = context.plan();
  std::vector<const plan::Case*> cases;
  for (const plan::Case& item : problem.cases)
    if (item.question == plan::Question::stages) cases.push_back(&item);
  // Those in chunks of one size have one truth.
  while (!cases.empty()) {
    const std::size_t chunk_size = cases.front()->chunk_size(problem.outline);
    std::vector<const plan::Case*> mine;
    kda::Passes passes = kda::Passes::forward;
    for (const plan::Case* const item : cases)
      if (item->chunk_size(problem.outline) == chunk_size) {
        mine.push_back(item);
        if (item->pass == kda::Pass::backward) passes = kda::Passes::both;
      }
    std::erase_if(cases,
                  [&](const plan::Case* item) { return item->chunk_size(problem.outline) == chunk_size; });
    const Resources& resources = context.resources();
    explain::check_stage_memory(context.problem(), chunk_size, resources.limits.memory_budget, passes);
    const int threads_of_twins =
        std::ranges::any_of(mine, &plan::Case::has_twins)
            ? threads_for_stage_twins(context.problem(), chunk_size, passes, resources.threads,
                                      resources.limits.memory_budget)
            : 1;
    context.progress("the truth of the stages");
    const kda::StageTruths truths =
        kda::run_stage_oracle(context.problem(), chunk_size, resources.threads, passes);
    const StageSetting setting{context.problem(), truths, context.gates(chunk_size), chunk_size,
                               resources.threads, passes};
    std::vector<Staged> all;
    for (const plan::Case* const item : mine) {
      const plan::Answer& who = problem.answers[*item->answer];
      all.push_back({item, described(who, kda::Pass::forward, problem), staged(context, who, setting)});
    }
    if (std::ranges::any_of(mine, &plan::Case::has_twins)) context.progress("the twins of the stages");
    std::vector<StagesToJudge> asked;
    for (const Staged& staged : all)
      if (staged.item->has_twins()) asked.push_back({&staged.who, &staged.answer});
    const TwinResults twins = judge_stages(setting, asked, threads_of_twins);
    report::Section section = stages_section(problem.source->target().name);
    for (const Staged& staged : all) section.entries.push_back(entry_of(staged, all, setting, twins));
    findings.sections.push_back(std::move(section));
  }
}

}  // namespace kda_check::engine

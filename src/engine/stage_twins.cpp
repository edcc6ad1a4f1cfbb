#include "engine/stage_twins.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/threads/parallel.hpp"
#include "engine/gate_offset.hpp"
#include "engine/likeness.hpp"
#include "engine/twin_heads.hpp"
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

/// One stage of the answers of a class, those that store it alike.
struct Judged {
  Stage stage;
  DType dtype;
  bool in_powers_of_two;
  judge::RowLayout layout;
  std::vector<std::size_t> answers;
  std::size_t heads_per_query_head;
  std::unique_ptr<judge::TwinTest> test = nullptr;
};

/// Answers that one family is for.
struct Class {
  ComputeFormat compute;
  DType dtype;
  std::vector<std::size_t> answers;
};

class StageJudge {
 public:
  StageJudge(const StageSetting& setting, const std::vector<StagesToJudge>& answers, int threads)
      : setting_(setting), answers_(answers), threads_(threads), results_(answers.size()) {}

  std::vector<StageTwins> results() {
    std::vector<Class> classes;
    for (std::size_t a = 0; a < answers_.size(); ++a) {
      const Answered& who = *answers_[a].who;
      if (who.compute == ComputeFormat::fp64) continue;
      const auto known = std::ranges::find_if(
          classes, [&](const Class& one) { return one.compute == who.compute && one.dtype == who.dtype; });
      if (known == classes.end())
        classes.push_back({who.compute, who.dtype, {a}});
      else
        known->answers.push_back(a);
    }
    for (const Class& one : classes) judge(one);
    return std::move(results_);
  }

 private:
  const tensor::Tensor& tensor_of(std::size_t answer, Stage stage) const {
    return answers_[answer].stages->tensors[number_of(stage)];
  }

  std::vector<Judged> stages_of(const Class& one) const {
    std::vector<Judged> list;
    for (const std::size_t answer : one.answers)
      for (const kda::StageRow& row : kda::stages(setting_.passes)) {
        const tensor::Tensor& tensor = tensor_of(answer, row.stage);
        if (tensor.empty() || tensor.dtype() == DType::fp64) continue;
        const bool in_powers_of_two =
            row.stage == Stage::g_cumsum && answers_[answer].stages->g_cumsum_in_powers_of_two;
        const auto known = std::ranges::find_if(list, [&](const Judged& judged) {
          return judged.stage == row.stage && judged.dtype == tensor.dtype() &&
                 judged.in_powers_of_two == in_powers_of_two;
        });
        if (known != list.end()) {
          known->answers.push_back(answer);
          continue;
        }
        judge::RowLayout layout = judge::stage_row_layout(row.stage, setting_.problem, setting_.chunk_size);
        const std::size_t heads = layout.heads / setting_.problem.dimensions().H;
        if (layout.rows > 0)
          list.push_back({row.stage, tensor.dtype(), in_powers_of_two, std::move(layout), {answer}, heads});
      }
    return list;
  }

  void judge(const Class& one) {
    const std::vector<Twin> family =
        hypotheses::twins_of_stages(setting_.problem, one.compute, one.dtype, setting_.chunk_size);
    std::vector<Judged> list = stages_of(one);
    if (family.size() < judge::fewest_twins || list.empty()) return;
    for (Judged& judged : list)
      judged.test = std::make_unique<judge::TwinTest>(twin_setting(
          TwinsOf::stages, judged.layout, judged.stage == Stage::g_cumsum ? ComputeFormat::fp32 : one.compute,
          judged.dtype, family.size(), judged.answers.size()));
    parallel_for(setting_.problem.dimensions().H, threads_, [&](std::size_t query_head, int) {
      const kda::Problem part = one_query_head(setting_.problem, query_head);
      std::vector<kda::StageTensors> twins;
      for (const Twin& twin : family) twins.push_back(stages_of(twin, part));
      for (Judged& judged : list) measure(judged, query_head, part, twins);
    });
    for (const Judged& judged : list) {
      const std::vector<judge::TwinJudgement> judgements = judged.test->conclude();
      for (std::size_t i = 0; i < judgements.size(); ++i) {
        TwinResult result = result_of(judged, judged.answers[i], judgements[i]);
        result.twins = family.size();
        results_[judged.answers[i]][number_of(judged.stage)] = std::move(result);
      }
    }
  }

  kda::StageTensors stages_of(const Twin& twin, const kda::Problem& part) const {
    kda::StageTensors stages = kda::allocate_stages(part, setting_.chunk_size, DType::fp32, setting_.passes);
    kda::RunOptions options = twin.options;
    options.stages.computed = &stages;
    twin.variant->run(part, options);
    if (setting_.passes == kda::Passes::both) twin.variant->run_backward(part, options);
    return stages;
  }

  void measure(Judged& judged, std::size_t query_head, const kda::Problem& part,
               const std::vector<kda::StageTensors>& twins) const {
    const judge::RowLayout layout = judge::stage_row_layout(judged.stage, part, setting_.chunk_size);
    const kda::StageTruth& truth = setting_.truths[number_of(judged.stage)];
    for (std::size_t i = 0; i < judged.heads_per_query_head; ++i) {
      const std::size_t head = query_head * judged.heads_per_query_head + i;
      const std::size_t rows = judged.layout.rows, width = judged.layout.width;
      std::vector<double> exact =
          judge::HeadRows(std::span<const double>(truth.hi), judged.layout, head).read_all<double>(rows);
      if (judged.in_powers_of_two) judge::to_powers_of_two(exact);
      std::vector<std::vector<float>> fields;
      for (const kda::StageTensors& twin : twins) {
        fields.push_back(judge::HeadRows(twin[number_of(judged.stage)], layout, i).read_all<float>(rows));
        if (judged.in_powers_of_two) judge::to_powers_of_two(fields.back());
      }
      for (const std::size_t answer : judged.answers)
        fields.push_back(
            judge::HeadRows(tensor_of(answer, judged.stage), judged.layout, head).read_all<float>(rows));
      judge::clear_what_does_not_count(exact, fields, judged.layout);
      judge::HeadValues values{judge::HeadRows(std::move(exact), width)};
      for (std::vector<float>& field : fields) {
        values.fields.emplace_back(std::move(field), width);
        values.fields.back().store_as(judged.dtype);
      }
      judged.test->measure(head, values);
    }
  }

  TwinResult result_of(const Judged& judged, std::size_t answer,
                       const judge::TwinJudgement& judgement) const {
    TwinResult result;
    result.judgement = judgement;
    result.computation_is_known = result.computation_is_whole = true;  // chunks of its size
    if (judgement.ratio <= 1) return result;
    const judge::Excess& worst = judgement.worst;
    result.place = judge::place_of(worst.region, worst.head, worst.cell, judged.layout);
    // What counts, in the units of the answer.
    const std::vector<double>& exact = setting_.truths[number_of(judged.stage)].hi;
    const tensor::Tensor& stored = tensor_of(answer, judged.stage);
    std::vector<double> values(exact.size(), 0.0);
    tensor::Tensor got(stored.name(), DType::fp64, stored.shape());
    std::ranges::fill(got.elements<double>(), 0.0);
    const judge::RowLayout& layout = judged.layout;
    for (std::size_t r = 0; r < layout.rows; ++r)
      for (std::size_t head = 0; head < layout.heads; ++head)
        for (std::size_t v = 0; v < layout.columns(r); ++v) {
          const std::size_t at = layout.element(r, head, v);
          if (!std::isfinite(exact[at])) continue;
          values[at] = exact[at];
          got.elements<double>()[at] = stored.value(at);
        }
    if (judged.in_powers_of_two) judge::to_powers_of_two(values);
    Likeness likeness(worst, layout, got);
    for (std::size_t head = 0; head < layout.heads; ++head)
      if (likeness.needs(head))
        likeness.take(head, judge::HeadRows(std::span<const double>(values), layout, head));
    result.likeness = likeness.text();
    if (judged.stage == Stage::g_cumsum && setting_.problem.options.gate == kda::Gate::softplus)
      result.gate_offset = gate_offset(layout, values, got, judged.in_powers_of_two);
    return result;
  }

  /// By how much of 2^-24 exp(A_log) all gates are off, where that explains most of the error.
  std::optional<double> gate_offset(const judge::RowLayout& layout, const std::vector<double>& truth,
                                    const tensor::Tensor& got, bool in_powers_of_two) const {
    const kda::HeadReader<double> reader(setting_.problem);
    GateSums sums;
    for (std::size_t head = 0; head < layout.heads; ++head) {
      std::vector<double> unit{0x1p-24 * numeric::exp(reader.log_amplitude(head))};
      if (in_powers_of_two) judge::to_powers_of_two(unit);
      for (std::size_t n = 0; n + 1 < layout.starts.size(); ++n)
        for (std::size_t r = layout.starts[n]; r < layout.starts[n + 1]; ++r) {
          const double gates = static_cast<double>((r - layout.starts[n]) % layout.chunk + 1);
          for (std::size_t v = 0; v < layout.width; ++v) {
            const std::size_t at = layout.element(r, head, v);
            const double error = got.value(at) - truth[at], direction = gates * unit.front();
            sums.add({error * error, error * direction, direction * direction});
          }
        }
    }
    return sums.offset();
  }

  const StageSetting& setting_;
  const std::vector<StagesToJudge>& answers_;
  const int threads_;
  std::vector<StageTwins> results_;
};

}  // namespace

std::vector<StageTwins> judge_stages(const StageSetting& setting, const std::vector<StagesToJudge>& answers,
                                     int threads_of_twins) {
  return StageJudge(setting, answers, threads_of_twins).results();
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

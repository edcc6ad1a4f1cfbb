#include "engine/twins.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "engine/gate_offset.hpp"
#include "engine/likeness.hpp"
#include "engine/twin_heads.hpp"
#include "judge/head_values.hpp"
#include "numeric/rounding.hpp"
#include "plan/cost.hpp"

namespace kda_check::engine {

namespace {

using numeric::ComputeFormat;
using numeric::DType;

/// One tensor of the answers of a class.
struct Judged {
  std::string name;
  judge::RowLayout layout;
  const judge::TruthValues* truth;
  DType dtype;
  bool truth_in_fp64;  ///< whoever is judged beside this class
  std::vector<const Answered*> answers;
  std::size_t heads_per_query_head = 1;
  std::unique_ptr<judge::TwinTest> test = nullptr;
};

/// Those of `answers` that have rows, by tensor and its element type.
std::vector<Judged> tensors_to_judge(const judge::TensorTruths& truths, const kda::Problem& problem,
                                     ComputeFormat compute, const std::vector<const Answered*>& answers) {
  std::vector<Judged> list;
  for (const auto& [name, truth] : truths)
    for (const Answered* const answer : answers) {
      const tensor::Tensor* const tensor = answer->tensor(name);
      if (tensor == nullptr || tensor->size() != truth.size()) continue;
      const auto known = std::ranges::find_if(list, [&, &name = name](const Judged& judged) {
        return judged.name == name && judged.dtype == tensor->dtype();
      });
      if (known != list.end()) {
        known->answers.push_back(answer);
        continue;
      }
      const judge::RowLayout layout = judge::row_layout(name, tensor->shape(), problem,
                                                        static_cast<std::size_t>(problem.options.chunk_size));
      if (layout.rows > 0)
        list.push_back({name,
                        layout,
                        &truth,
                        tensor->dtype(),
                        compute == ComputeFormat::fp32,
                        {answer},
                        layout.heads / problem.dimensions().H});
    }
  return list;
}

/// What a twin would have stored; of a finer type nothing is to be had.
void round_to(DType dtype, std::vector<float>& values) {
  if (dtype == DType::bf16)
    for (float& x : values) x = numeric::through_bf16(x);
  if (dtype == DType::fp16)
    for (float& x : values) x = numeric::through_fp16(x);
}

void measure(Judged& judged, std::size_t query_head, const kda::Problem& part,
             const std::vector<kda::Tensors>& twins) {
  const judge::RowLayout layout =
      judge::row_layout(judged.name, twins.front().at(judged.name).shape(), part, judged.layout.chunk);
  for (std::size_t i = 0; i < judged.heads_per_query_head; ++i) {
    const std::size_t head = query_head * judged.heads_per_query_head + i;
    judge::HeadValues values{judge::head_of(*judged.truth, judged.layout, head), {}};
    if (!judged.truth_in_fp64)
      for (double& x : values.truth) x = static_cast<double>(static_cast<float>(x));
    for (const kda::Tensors& twin : twins) {
      values.fields.push_back(judge::head_of(twin.at(judged.name), layout, i));
      if (twin.at(judged.name).dtype() != judged.dtype) round_to(judged.dtype, values.fields.back());
    }
    for (const Answered* const answer : judged.answers)
      values.fields.push_back(judge::head_of(*answer->tensor(judged.name), judged.layout, head));
    judged.test->measure(head, values);
  }
}

TwinResult result_of(const Judged& judged, const Answered& answer, const judge::TwinJudgement& judgement) {
  TwinResult result;
  result.judgement = judgement;
  result.largest_rms_ratio = judged.test->largest_rms_ratio();
  if (judgement.ratio > 1) {
    const judge::Excess& worst = judgement.worst;
    result.place = judge::place_of(worst.region, worst.head, worst.cell, judged.layout);
    result.likeness = likeness(worst, judged.layout, *judged.truth, *answer.tensor(judged.name));
  }
  return result;
}

}  // namespace

/// Answers that one family is for.
struct Twins::Class {
  ComputeFormat compute;
  DType dtype;
  judge::Form form;
  std::size_t chunk_size;  ///< the limits depend on it
  plan::Names left_out;
  std::vector<const Answered*> answers;
  std::vector<Twin> family;
  std::map<std::string, double, std::less<>> limits = {};  ///< on rms_ratio, by tensor
  std::map<std::pair<const Answered*, std::string>, TwinResult> results = {};
};

int threads_for_twins(const plan::Problem& problem, kda::Pass pass, int threads, std::size_t budget) {
  constexpr std::size_t fields = 16;  // a family and what adding up its errors takes
  const std::size_t truth = plan::answer_bytes(problem.outline, pass, DType::fp64),
                    per_thread = fields * truth / problem.outline.dimensions.H;
  if (truth + per_thread > budget)
    throw Error(
        ErrorKind::input,
        fmt::format("twins take {:.3g} GB; the memory budget is {:.3g} GB",
                    static_cast<double>(truth + per_thread) * 1e-9, static_cast<double>(budget) * 1e-9),
        {}, "--memory-limit raises it; with --twins off the limits decide alone");
  if (per_thread == 0) return threads;
  return static_cast<int>(
      std::clamp<std::size_t>((budget - truth) / per_thread, 1, static_cast<std::size_t>(threads)));
}

Twins::Twins(const kda::Problem& problem, kda::Pass pass, int threads)
    : problem_(problem), pass_(pass), threads_(threads) {}
Twins::~Twins() = default;

void Twins::add(const Answered& answer, const plan::Names& left_out) {
  if (answer.compute == ComputeFormat::fp64) return;
  const judge::Form form = left_out.empty() ? answer.form : judge::Form::unknown;
  for (const std::unique_ptr<Class>& known : classes_)
    if (known->compute == answer.compute && known->dtype == answer.dtype && known->form == form &&
        known->chunk_size == answer.chunk_size && known->left_out == left_out) {
      if (std::ranges::find(known->answers, &answer) == known->answers.end())
        known->answers.push_back(&answer);
      return;
    }
  std::vector<Twin> family = twin_family(problem_, pass_, answer.compute, answer.dtype, form);
  for (const std::string& way : left_out)
    std::erase_if(family, [&](const Twin& twin) { return computes(twin, way); });
  if (family.size() < judge::fewest_twins) return;
  classes_.push_back(std::make_unique<Class>(
      Class{answer.compute, answer.dtype, form, answer.chunk_size, left_out, {&answer}, std::move(family)}));
}

void Twins::truth(std::string_view tensor, std::size_t size, std::size_t begin,
                  std::span<const double> values) {
  if (is_empty()) return;
  auto found = truths_.find(tensor);
  if (found == truths_.end()) {
    const bool any_in_fp32 =
        std::ranges::any_of(classes_, [](const auto& one) { return one->compute == ComputeFormat::fp32; });
    found = truths_.emplace(tensor, judge::TruthValues(size, any_in_fp32)).first;
  }
  found->second.set(begin, values);
}

void Twins::limit(const Answered& answer, std::string_view tensor, double rms_ratio) {
  for (const std::unique_ptr<Class>& one : classes_)
    if (std::ranges::find(one->answers, &answer) != one->answers.end())
      one->limits[std::string(tensor)] = std::max(one->limits[std::string(tensor)], rms_ratio);
}

void Twins::judge() {
  for (const std::unique_ptr<Class>& one : classes_) judge(*one);
}

void Twins::judge(Class& one) const {
  std::vector<Judged> tensors = tensors_to_judge(truths_, problem_, one.compute, one.answers);
  if (tensors.empty()) return;
  for (Judged& judged : tensors) {
    judge::TwinSetting setting =
        twin_setting(judged.layout, one.compute, judged.dtype, one.family.size(), judged.answers.size());
    if (const auto limit = one.limits.find(judged.name); limit != one.limits.end())
      setting.most_rms_ratio = std::max(setting.most_rms_ratio, limit->second);
    judged.test = std::make_unique<judge::TwinTest>(std::move(setting));
  }
  parallel_for(problem_.dimensions().H, threads_, [&](std::size_t query_head, int) {
    const kda::Problem part = one_query_head(problem_, query_head);
    const std::vector<kda::Tensors> twins = answers_of(one.family, pass_, part);
    for (Judged& judged : tensors) measure(judged, query_head, part, twins);
  });
  const bool has_softplus = pass_ == kda::Pass::forward && problem_.options.gate == kda::Gate::softplus;
  std::optional<GateDirection> gates;
  for (const Judged& judged : tensors) {
    const std::vector<judge::TwinJudgement> judgements = judged.test->conclude();
    for (std::size_t a = 0; a < judgements.size(); ++a) {
      TwinResult result = result_of(judged, *judged.answers[a], judgements[a]);
      result.twins = one.family.size();
      result.structure_known = one.form != judge::Form::unknown;
      if (judgements[a].ratio > 1 && has_softplus) {
        if (!gates) gates.emplace(problem_, threads_);
        result.gate_offset =
            gates->offset(judged.name, *judged.truth, *judged.answers[a]->tensor(judged.name));
      }
      one.results.emplace(std::pair(judged.answers[a], judged.name), std::move(result));
    }
  }
}

const TwinResult* Twins::result(const Answered& answer, const plan::Names& left_out,
                                std::string_view tensor) const {
  for (const std::unique_ptr<Class>& one : classes_) {
    if (one->left_out != left_out) continue;
    if (const auto found = one->results.find({&answer, std::string(tensor)}); found != one->results.end())
      return &found->second;
  }
  return nullptr;
}

}  // namespace kda_check::engine

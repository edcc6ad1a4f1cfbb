#include "engine/twins_on_gpu.hpp"

#include <algorithm>
#include <utility>

#include "base/threads/parallel.hpp"
#include "engine/decay_directions.hpp"
#include "kda/bounds/scaled_decays.hpp"

namespace kda_check::engine {

namespace {

/// From query head `query_head` on, of a tensor that has `query_heads` of them, counted from the first.
kda::RowTensor rows_of(const TwinTensor& tensor, kda::TensorOnGpu values, numeric::DType stored_as,
                       std::size_t query_heads, std::size_t query_head) {
  const std::size_t heads = tensor.heads_per_query_head;
  return judge::rows_on_gpu(std::move(values), stored_as, tensor.layout.with_heads(heads * query_heads),
                            heads * query_head);
}

}  // namespace

Emulations decay_emulations(const kda::Problem& problem, const kda::RunOptions& options) {
  const auto with = [&](kda::ScaledDecays scaled) {
    return kda::Emulated{&kda::variant_named("recurrent"), &options, kda::Pass::forward, scaled,
                         static_cast<float>(1 + decay_step)};
  };
  Emulations wanted{with(kda::ScaledDecays::slowest)};
  if (problem.dimensions().decays() > 1) wanted.push_back(with(kda::ScaledDecays::all));
  return wanted;
}

AnswersOnGpu TwinsOnGpu::answers_of(const Emulations& wanted) {
  if (ahead_ != nullptr)
    if (std::optional<AnswersOnGpu> answers = ahead_->take(wanted)) return std::move(*answers);
  AnswersOnGpu found;
  gpu_answers_of({wanted}, problem_, first_, count_,
                 [&](std::size_t, AnswersOnGpu answers) { found = std::move(answers); });
  return found;
}

AnswersOnGpu TwinsOnGpu::answers(const std::vector<TwinTensor>& tensors, const std::vector<Twin>& family,
                                 kda::Pass pass, bool has_decay_slopes) {
  if (has_decay_slopes && !decays_) decays_ = answers_of(decay_emulations(problem_, decay_options_));
  for (const TwinTensor& tensor : tensors) truth_of(tensor);
  return answers_of(emulations_of(family, pass));
}

void TwinsOnGpu::measure(std::vector<TwinTensor>& tensors, std::vector<TwinParameter>& parameters,
                         const AnswersOnGpu& twins, bool has_decay_slopes) {
  constexpr int side_by_side = 2;  // while one waits for the GPU, it has the other
  parallel_for(tensors.size(), std::min(threads_, side_by_side), [&](std::size_t which, int) {
    TwinTensor& tensor = tensors[which];
    bool is_wanted = false;
    for (std::size_t i = 0; i < count_; ++i) is_wanted = is_wanted || tensor.has_to_measure(first_ + i);
    if (is_wanted) measure(tensor, twins, has_decay_slopes);
  });
  for (TwinParameter& parameter : parameters) measure(parameter, twins);
}

void TwinsOnGpu::measure(TwinParameter& parameter, const AnswersOnGpu& twins) const {
  std::vector<tensor::Tensor> values;
  for (const kda::AnswerOnGpu& twin : twins.answers)
    values.push_back(kda::downloaded(kda::tensor_of(twin, parameter.name), parameter.name));
  for (std::size_t i = 0; i < count_; ++i) {
    const std::size_t query_head = first_ + i;
    std::vector<TwinParameter::Values> of_head;
    for (const tensor::Tensor& all : values)
      of_head.push_back({&all, (query_head - twins.first) * parameter.per_query_head()});
    parameter.measure(query_head, truths_, of_head);
  }
}

void TwinsOnGpu::measure(TwinTensor& tensor, const AnswersOnGpu& twins, bool has_decay_slopes) {
  judge::HeadsOnGpu values{count_ * tensor.heads_per_query_head, truth_of(tensor)};
  for (const kda::AnswerOnGpu& twin : twins.answers)
    values.fields.push_back(
        rows_of(tensor, kda::tensor_of(twin, tensor.name), tensor.dtype, twins.count, first_ - twins.first));
  for (const tensor::Tensor* const own : tensor.answers)
    values.fields.push_back(rows_of(tensor, kda::uploaded(own->dtype(), own->data(), own->size()),
                                    own->dtype(), problem_.dimensions().H, first_));
  if (has_decay_slopes) add_directions(tensor, values);
  tensor.test->measure(first_ * tensor.heads_per_query_head, values, threads_);
}

kda::RowTensor TwinsOnGpu::truth_of(const TwinTensor& tensor) {
  const std::lock_guard lock(uploading_);
  kda::TensorOnGpu& truth = uploaded_[tensor.name];
  if (const auto there = truths_.on_gpu.find(tensor.name); there != truths_.on_gpu.end()) {
    truth = there->second;
  } else if (truth.memory == nullptr) {
    const std::span<const double> values = truths_.tensors.find(tensor.name)->second;
    truth = kda::uploaded(numeric::DType::fp64, values.data(), values.size());
  }
  return rows_of(tensor, truth, numeric::DType::fp64, truths_.count, first_ - truths_.first);
}

void TwinsOnGpu::add_directions(const TwinTensor& tensor, judge::HeadsOnGpu& values) const {
  constexpr judge::Region regions[] = {judge::Region::slowest_decay_of_head, judge::Region::decays_of_head};
  values.step = decay_step;
  for (std::size_t n = 0; n < decays_->answers.size(); ++n) {
    const kda::TensorOnGpu& answer = kda::tensor_of(decays_->answers[n], tensor.name);
    values.directions.push_back(
        rows_of(tensor, answer, answer.dtype, decays_->count, first_ - decays_->first));
    values.regions.push_back(regions[n]);
  }
  const std::vector<int>& slowest = decays_->answers.front().slowest;
  const std::size_t group = problem_.heads_per_group(), heads = tensor.heads_per_query_head;
  for (std::size_t head = 0; head < values.heads; ++head) {
    const auto begin =
        slowest.begin() + static_cast<std::ptrdiff_t>((first_ - decays_->first + head / heads) * group);
    values.have_directions.push_back(std::any_of(begin, begin + static_cast<std::ptrdiff_t>(group),
                                                 [](int channel) { return channel >= 0; }));
  }
}

}  // namespace kda_check::engine

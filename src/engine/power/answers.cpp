#include "engine/power/answers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/threads/parallel.hpp"
#include "engine/twin_heads.hpp"
#include "hypotheses/naming/faulty_output.hpp"
#include "judge/verdict.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::engine {

namespace {

template <class Storage>
float stored_as(double x) {
  return static_cast<float>(numeric::widen(numeric::round_to<Storage>(x)));
}

/// Twins, the healthy answer in fp32, the truth with its exponents, what directions are made of; the rest is
/// of single heads.
void check_memory(const kda::Problem& problem, std::string_view tensor, const HealthyKernel& kernel,
                  std::size_t budget) {
  const std::size_t elements = tensor::element_count(
      kda::expected_shape(*kda::find_spec(tensor), problem.dimensions(), problem.options.state_v_first));
  const std::size_t stored = numeric::format_of(kda::dtype_of(tensor, problem, kernel.options.dtype)).bytes;
  std::size_t bytes =
      elements * (kernel.twins.size() * stored + sizeof(float) + sizeof(double) + sizeof(std::int16_t));
  if (slopes_judge(kernel.compute(), kernel.options.dtype))  // directions
    for (const std::string& name : kda::tensors_of(kda::Pass::forward, problem))
      bytes += 2 * sizeof(float) *
               tensor::element_count(kda::expected_shape(*kda::find_spec(name), problem.dimensions(),
                                                         problem.options.state_v_first));
  if (bytes <= budget) return;
  throw Error(ErrorKind::input,
              fmt::format("the twins of {} take {}; the memory budget is {}", tensor, size_text(bytes),
                          size_text(budget)),
              {}, "--memory-limit raises it");
}

}  // namespace

HealthyKernel healthy_kernel(const kda::Problem& problem, const kda::Variant& variant,
                             const kda::RunOptions& options) {
  hypotheses::Hypothesis known;
  known.variant = &variant, known.options = options;
  hypotheses::Spread spread = hypotheses::spread_around(known, known, problem);
  const std::size_t stable = spread.stable.size();
  return {&variant, options, in_one_list(std::move(spread)), stable};
}

PowerAnswers::PowerAnswers(const kda::Problem& problem, std::string_view tensor, const HealthyKernel& kernel,
                           std::size_t memory_budget)
    : problem_(problem),
      kernel_((check_memory(problem, tensor, kernel, memory_budget), kernel)),
      tensor_(tensor),
      healthy_(
          std::move(hypotheses::unrounded(problem, *kernel.variant, kernel.options).at(std::string(tensor)))),
      storage_(kda::dtype_of(tensor, problem, kernel.options.dtype)),
      layout_(judge::row_layout(tensor, healthy_.shape(), problem,
                                static_cast<std::size_t>(problem.options.chunk_size))),
      twins_(problem.dimensions().H) {
  decays_.resize(slopes_judge(kernel.compute(), storage_) ? twins_.size() : 0);
  parallel_for(twins_.size(), kernel.options.threads, [&](std::size_t query_head, int) {
    const kda::Problem part = one_query_head(problem, query_head);
    if (!decays_.empty()) decays_[query_head].emplace(problem, query_head);
    for (const Twin& twin : kernel_.twins)
      twins_[query_head].push_back(
          std::move(answer_of(twin, kda::Pass::forward, part).at(std::string(tensor))));
  });
  if (!kernel.twins.empty())
    layout_of_twins_ =
        judge::row_layout(tensor, twins_.front().front().shape(), one_query_head(problem, 0), layout_.chunk);
}

std::vector<Fault> PowerAnswers::faults(std::size_t places) const {
  return faults_on({problem_, tensor_, layout_, healthy_, storage_, places}, kernel_.options.threads);
}

HealthyHead PowerAnswers::head(std::size_t head) const {
  HealthyHead healthy{judge::HeadRows(healthy_, layout_, head).read_all<float>(layout_.rows), {}};
  healthy.stored = healthy.exact;
  numeric::visit_storage(storage_, [&](auto tag) {
    for (float& x : healthy.stored) x = stored_as<decltype(tag)>(static_cast<double>(x));
  });
  return healthy;
}

std::vector<float> PowerAnswers::faulty(const HealthyHead& healthy, std::size_t head,
                                        const Trial& trial) const {
  std::vector<float> values = healthy.stored;
  if (trial.fault == nullptr || !trial.fault->has(head)) return values;
  const Fault& fault = *trial.fault;
  const std::vector<float>& direction = fault.direction.empty() ? healthy.exact : fault.direction;
  numeric::visit_storage(storage_, [&](auto tag) {
    for (std::size_t r = 0; r < layout_.rows; ++r) {
      if (!fault.rows[r]) continue;
      const std::size_t row = r * judge::padded_width(layout_.width);
      for (std::size_t i = row + fault.first_column; i < row + fault.last_column; ++i) {
        const double x =
            static_cast<double>(healthy.exact[i]) + trial.share * static_cast<double>(direction[i]);
        values[i] = stored_as<decltype(tag)>(x);
      }
    }
  });
  return values;
}

tensor::Tensor PowerAnswers::tensor(const Trial& trial) const {
  tensor::Tensor tensor(tensor_, storage_, healthy_.shape());
  for (std::size_t head = 0; head < layout_.heads; ++head) {
    const std::vector<float> values = faulty(this->head(head), head, trial);
    for (std::size_t r = 0; r < layout_.rows; ++r)
      for (std::size_t v = 0; v < layout_.width; ++v)
        tensor.set(layout_.element(r, head, v),
                   static_cast<double>(values[r * judge::padded_width(layout_.width) + v]));
  }
  return tensor;
}

std::vector<judge::TwinJudgement> PowerAnswers::judged(const judge::TruthValues& truth,
                                                       const std::vector<Trial>& trials) const {
  constexpr std::size_t at_once = 24;  // each thread holds a head of all of them
  std::vector<judge::TwinJudgement> all;
  for (std::size_t first = 0; first < trials.size(); first += at_once) {
    const auto begin = trials.begin() + static_cast<std::ptrdiff_t>(first);
    const std::size_t count = std::min(at_once, trials.size() - first);
    const std::vector<judge::TwinJudgement> some =
        measured(truth, std::vector<Trial>(begin, begin + static_cast<std::ptrdiff_t>(count))).conclude();
    if (some.empty()) return {};
    all.insert(all.end(), some.begin(), some.end());
  }
  for (judge::TwinJudgement& one : all) one.ratio /= judge::verdict_constants.beyond_its_computation;
  return all;
}

double PowerAnswers::stable_rms_ratio(const judge::TruthValues& truth) const {
  return kernel_.stable == 0 ? 0 : measured(truth, {{nullptr, 0}}).stable_rms_ratio();
}

judge::TwinTest PowerAnswers::measured(const judge::TruthValues& truth,
                                       const std::vector<Trial>& trials) const {
  judge::TwinSetting setting = twin_setting(TwinsOf::outputs, layout_, kernel_.compute(), storage_,
                                            kernel_.twins.size(), trials.size());
  setting.stable = kernel_.stable, setting.left = 0;
  judge::TwinTest test(std::move(setting));
  const std::size_t group = layout_.heads / twins_.size();
  parallel_for(layout_.heads, kernel_.options.threads, [&](std::size_t head, int) {
    judge::HeadValues values{judge::HeadRows(truth, layout_, head)};
    for (const tensor::Tensor& twin : twins_[head / group])
      values.fields.emplace_back(twin, layout_of_twins_, head % group);
    if (!decays_.empty())
      values.directions = decays_[head / group]->of(tensor_, layout_of_twins_, head % group);
    const HealthyHead healthy = this->head(head);
    for (const Trial& trial : trials) values.fields.emplace_back(faulty(healthy, head, trial), layout_.width);
    test.measure(head, values);
  });
  return test;
}

}  // namespace kda_check::engine

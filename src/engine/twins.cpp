#include "engine/twins.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/threads/parallel.hpp"
#include "base/threads/work.hpp"
#include "engine/decay_directions.hpp"
#include "engine/twin_heads.hpp"
#include "engine/twins_on_gpu.hpp"
#include "kda/bounds/scaled_decays.hpp"
#include "numeric/ulp.hpp"
#include "plan/cost.hpp"

namespace kda_check::engine {

namespace {

using numeric::ComputeFormat;
using numeric::DType;

template <class List>
bool contains(const List& answers, const tensor::Tensor& tensor) {
  return std::ranges::find(answers, &tensor) != answers.end();
}

}  // namespace

/// Answers that one spread is for.
struct Twins::Class {
  ComputeFormat compute;
  DType dtype;
  std::optional<double> left;
  std::string key;
  std::vector<Twin> family;  ///< twins, then stable computations
  std::size_t stable;
  std::size_t every;  ///< as of TwinTensor::begin
  std::vector<TwinTensor> tensors = {};
  std::vector<TwinParameter> parameters = {};

  void add(const kda::Problem& problem, kda::Pass pass, const Answered& answer) {
    for (const std::string& name : kda::tensors_of(pass, problem)) {
      const tensor::Tensor* const tensor = answer.tensor(name);
      // What codes may be off by is taken off: from the first twin they are off by all that it errs.
      const bool has_codes = name == "final_state" && answer.tensor("state_in_fp64") != nullptr;
      if (tensor == nullptr || (left && has_codes) ||
          tensor->shape() !=
              kda::expected_shape(*kda::find_spec(name), problem.dimensions(), problem.options.state_v_first))
        continue;
      const auto take = [&](auto& judged) {
        if (!contains(judged.answers, *tensor)) judged.answers.push_back(tensor);
      };
      const auto known = std::ranges::find_if(tensors, [&](const TwinTensor& judged) {
        return judged.name == name && judged.dtype == tensor->dtype();
      });
      if (known != tensors.end()) {
        take(*known);
        continue;
      }
      judge::RowLayout layout = judge::row_layout(name, tensor->shape(), problem,
                                                  static_cast<std::size_t>(problem.options.chunk_size));
      if (layout.rows == 0) {
        const std::size_t HV = problem.dimensions().HV;
        auto one = std::ranges::find(parameters, name, &TwinParameter::name);
        if (one == parameters.end())
          one = parameters.insert(one, {name,
                                        tensor->size() / HV,
                                        problem.heads_per_group(),
                                        every,
                                        {},
                                        std::vector<TwinParameter::Sums>(HV)});
        take(*one);
        continue;
      }
      const std::size_t heads = layout.heads / problem.dimensions().H;
      tensors.push_back({name, std::move(layout), compute, tensor->dtype(), heads, {tensor}});
    }
  }

  void begin(kda::Pass pass) {
    for (TwinTensor& judged : tensors) judged.begin(twins_of(pass), family.size(), stable, left, every);
  }

  bool has_to_measure(std::size_t query_head) const {
    const auto is_new = [&](const auto& judged) { return judged.has_to_measure(query_head); };
    return std::ranges::any_of(parameters, is_new) || std::ranges::any_of(tensors, is_new);
  }

  bool has_decay_slopes(kda::Pass pass) const {
    return pass == kda::Pass::forward && slopes_judge(compute, dtype);
  }

  /// A query head at work: its problem, and the answers of the family as far as they are there.
  struct Head {
    std::size_t number;
    std::optional<DecayDirections>* decays;  ///< of it; none yet where nobody asked before
    std::optional<kda::Problem> part = {};
    std::vector<kda::Tensors> twins = {};
    bool is_settled = false;
  };

  void run_first(Head& head, kda::Pass pass) const {
    head.twins.push_back(answer_of(family.front(), pass, *head.part));
  }
  /// The parts that all answers of a head are run in, each alone.
  std::size_t runs(kda::Pass pass) const { return family.size() + (has_decay_slopes(pass) ? 1 : 0); }
  void run(Head& head, std::size_t which, kda::Pass pass) const {
    if (which == family.size()) {
      if (!*head.decays) head.decays->emplace(*head.part, 0);
    } else if (head.twins[which].empty()) {
      head.twins[which] = answer_of(family[which], pass, *head.part);
    }
  }

  bool is_in_full(std::size_t query_head) const { return query_head % every == 0; }
  /// Where the first twin is all that a head needs: measures that.
  bool settle(Head& head, kda::Pass pass, const HeadTruths& truths) {
    bool is_settled = measure_parameters(head, truths);
    for (TwinTensor& judged : tensors)
      is_settled = judged.settle(head.number, [&](std::size_t value_head, std::size_t i) {
        return values_of(head, pass, truths, judged, value_head, i);
      }) && is_settled;
    return is_settled;
  }
  void measure(Head& head, kda::Pass pass, const HeadTruths& truths) {
    for (TwinTensor& judged : tensors)
      judged.measure(head.number, [&](std::size_t value_head, std::size_t i) {
        return values_of(head, pass, truths, judged, value_head, i);
      });
    measure_parameters(head, truths);
  }

  /// Whether heads that the first twin alone was run in have to be measured beside the others.
  bool reopen() {
    bool any = false;
    for (const TwinTensor& judged : tensors) any = judged.test->reopen() || any;
    for (TwinParameter& parameter : parameters) any = parameter.reopen() || any;
    return any;
  }

 private:
  judge::HeadValues values_of(const Head& head, kda::Pass pass, const HeadTruths& truths,
                              const TwinTensor& judged, std::size_t value_head, std::size_t i) const {
    const judge::RowLayout layout = judged.layout.with_heads(judged.heads_per_query_head);
    judge::HeadValues values{truth_of(truths, judged.name, judged.layout, value_head)};
    for (const kda::Tensors& twin : head.twins) {
      values.fields.emplace_back(twin.at(judged.name), layout, i);
      values.fields.back().store_as(judged.dtype);
    }
    for (const tensor::Tensor* const answer : judged.answers)
      values.fields.emplace_back(*answer, judged.layout, value_head);
    if (*head.decays && has_decay_slopes(pass))
      values.directions = (*head.decays)->of(judged.name, layout, i);
    return values;
  }
  bool measure_parameters(const Head& head, const HeadTruths& truths) {
    bool all = true;
    for (TwinParameter& parameter : parameters) {
      std::vector<TwinParameter::Values> values;
      for (const kda::Tensors& twin : head.twins) values.push_back({&twin.at(parameter.name), 0});
      all = parameter.measure(head.number, truths, values) && all;
    }
    return all;
  }
};

Twins::Twins(const kda::Problem& problem, kda::Pass pass, int threads, std::size_t heads_at_once,
             CpuInstead cpu_instead)
    : problem_(problem),
      pass_(pass),
      threads_(static_cast<int>(std::min(heads_at_once, static_cast<std::size_t>(threads)))),
      runs_at_once_(pass == kda::Pass::forward ? threads : threads_),
      decay_options_(kda::scaled_decay_options(problem)),
      cpu_instead_(std::move(cpu_instead)) {}
Twins::~Twins() = default;

void Twins::add(const Answered& answer, const Computation& computation) {
  if (answer.compute == ComputeFormat::fp64) return;
  std::string key =
      fmt::format("{} {} {}", numeric::row_of(answer.compute).name, numeric::name_of(answer.dtype),
                  static_cast<int>(answer.segments.merge) * 1000 + answer.segments.parts);
  if (computation.is_known()) {
    key += hypotheses::identity(*computation.hypothesis, problem_);
    if (computation.left) key += fmt::format(" {} {}", *computation.left, computation.is_whole);
  } else {
    if (computation.licensed) key += " near " + hypotheses::identity(*computation.licensed, problem_);
    if (computation.looks_further) key += " further";
  }
  for (const std::unique_ptr<Class>& known : classes_)
    if (known->key == key) {
      known->add(problem_, pass_, answer);
      return;
    }
  const auto around = [&](const hypotheses::Hypothesis& known) {
    const bool is_ours = computation.is_known() && !computation.left;
    return hypotheses::spread_around(known, *computation.licensed, problem_, is_ours);
  };
  hypotheses::Spread spread = computation.is_known()
                                  ? around(*computation.hypothesis)
                                  : hypotheses::spread_of_class(problem_, pass_, answer.compute, answer.dtype,
                                                                answer.segments, computation.looks_further);
  if (!computation.is_known() && computation.licensed) spread.add(around(*computation.licensed));
  // Of what is given in part, other roundings may have done the rest.
  if (computation.left && !computation.is_whole)
    spread.add(
        {{},
         hypotheses::spread_of_class(problem_, pass_, answer.compute, answer.dtype, answer.segments).stable});
  if (spread.twins.size() < judge::fewest_twins) return;
  const std::size_t stable = spread.stable.size(),
                    every = computation.is_known() ? one_in_full(problem_.dimensions()) : 1;
  classes_.push_back(
      std::make_unique<Class>(Class{answer.compute, answer.dtype, computation.left, std::move(key),
                                    in_one_list(std::move(spread)), stable, every}));
  classes_.back()->add(problem_, pass_, answer);
}

void Twins::begin(std::size_t heads_at_once) {
  if (!cpu_instead_ || heads_at_once < problem_.dimensions().H) return;
  std::vector<Emulations> wanted;
  bool has_decays = false;
  for (const std::unique_ptr<Class>& one : classes_) {
    if (!is_for_gpu(*one)) continue;
    if (one->has_decay_slopes(pass_) && !std::exchange(has_decays, true))
      wanted.push_back(decay_emulations(problem_, decay_options_));
    wanted.push_back(emulations_of(one->family, pass_));
  }
  ahead_ = std::make_unique<TwinsAhead>(problem_, std::move(wanted));
}

bool Twins::are_on_gpu() const {
  return std::ranges::all_of(classes_, [&](const auto& one) { return is_for_gpu(*one); });
}

bool Twins::is_for_gpu(const Class& one) const {
  // What is measured there are differences from the truth.
  return cpu_instead_ && !one.left && can_answer_on_gpu(emulations_of(one.family, pass_), problem_) &&
         (!one.has_decay_slopes(pass_) ||
          can_answer_on_gpu(decay_emulations(problem_, decay_options_), problem_));
}

bool Twins::tried_on_gpu(const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::environment) throw;
    if (cpu_instead_) cpu_instead_(error.what());
    cpu_instead_ = nullptr;
    return false;
  }
}

bool Twins::is_measured_on_gpu(Class& one, TwinsOnGpu& gpu, std::deque<std::future<void>>& measuring) {
  constexpr std::size_t at_once = 2;  // while one waits for the GPU, it has the other
  if (!is_for_gpu(one)) return false;
  const bool slopes = one.has_decay_slopes(pass_);
  while (measuring.size() >= at_once) {
    std::future<void> first = std::move(measuring.front());
    measuring.pop_front();
    if (!tried_on_gpu([&] { first.get(); })) return false;  // judge() measures that class again
  }
  return tried_on_gpu([&] {
    auto twins = std::make_shared<const AnswersOnGpu>(gpu.answers(one.tensors, one.family, pass_, slopes));
    const auto measure = [=, &one, &gpu] { gpu.measure(one.tensors, one.parameters, *twins, slopes); };
    try {
      measuring.push_back(std::async(std::launch::async, measure));
    } catch (const std::system_error&) {
      measure();  // no thread is to be had
    }
  });
}

void Twins::measure(const HeadTruths& truths, std::size_t first, std::size_t count) {
  std::vector<std::optional<DecayDirections>> decays(count);
  TwinsOnGpu gpu(problem_, decay_options_, ahead_.get(), truths, first, count, threads_);
  std::deque<std::future<void>>
      measuring;  // classes on the GPU, while the answers of the next are waited for
  for (const std::unique_ptr<Class>& one : classes_) {  // one family's answers at a time
    one->begin(pass_);
    const auto is_wanted = [&](std::size_t item) { return one->has_to_measure(first + item); };
    std::size_t wanted = 0;
    for (std::size_t item = 0; item < count; ++item) wanted += is_wanted(item);
    if (wanted == 0 || is_measured_on_gpu(*one, gpu, measuring)) continue;
    const auto is_here = [&](const TwinTensor& judged) { return truths.tensors.contains(judged.name); };
    if (!std::ranges::all_of(one->tensors, is_here)) continue;  // judge() asks for the truth again
    measure_here(*one, truths, first, decays);
  }
  // Where it fails judge() measures these classes again.
  for (std::future<void>& last : measuring) tried_on_gpu([&] { last.get(); });
}

void Twins::measure_here(Class& one, const HeadTruths& truths, std::size_t first,
                         std::vector<std::optional<DecayDirections>>& decays) {
  const double share = 1 / static_cast<double>(problem_.dimensions().H),
               steps = share * plan::steps_of_run(problem_),
               seconds = share * plan::twin_seconds(problem_, pass_) /
                         static_cast<double>(classes_.size() * one.runs(pass_));
  std::vector<Class::Head> heads;
  for (std::size_t i = 0; i < decays.size(); ++i)
    if (one.has_to_measure(first + i)) heads.push_back({first + i, &decays[i]});
  parallel_for(heads.size(), threads_, [&](std::size_t i, int) {
    Class::Head& head = heads[i];
    if (one.is_in_full(head.number)) return;
    const Work at_hand(seconds, steps);
    head.part = one_query_head(problem_, head.number);
    one.run_first(head, pass_);
    head.is_settled = one.settle(head, pass_, truths);
    head.part.reset(), head.twins.clear();  // of gradients all heads are here at once
  });
  std::erase_if(heads, [](const Class::Head& head) { return head.is_settled; });
  // As many at a time as there are threads: whose twins are at work shares them out with the others.
  const auto at_once = static_cast<std::size_t>(threads_);
  for (std::size_t begin = 0; begin < heads.size(); begin += at_once) {
    const std::span some = std::span(heads).subspan(begin, std::min(at_once, heads.size() - begin));
    for (Class::Head& head : some) {
      head.part = one_query_head(problem_, head.number);
      head.twins.resize(one.family.size());
    }
    parallel_for(some.size() * one.runs(pass_), runs_at_once_, [&](std::size_t item, int) {
      const Work at_hand(seconds, steps);
      one.run(some[item % some.size()], item / some.size(), pass_);
    });
    parallel_for(some.size(), threads_, [&](std::size_t i, int) {
      one.measure(some[i], pass_, truths);
      some[i] = {some[i].number, some[i].decays};
    });
  }
}

void Twins::judge(TruthSource& truths) {
  for (const std::unique_ptr<Class>& one : classes_) one->begin(pass_);
  bool any = true;
  const auto has_to_measure = [&](std::size_t query_head) {
    return std::ranges::any_of(classes_, [&](const auto& one) { return one->has_to_measure(query_head); });
  };
  while (std::exchange(any, false)) {
    const bool on_gpu = cpu_instead_ != nullptr;
    for_heads(
        truths, problem_.dimensions().H, has_to_measure,
        [&](const HeadTruths& some, std::size_t first, std::size_t count) { measure(some, first, count); });
    any = on_gpu && cpu_instead_ == nullptr;  // it failed: the CPU has what is left
    for (const std::unique_ptr<Class>& one : classes_) any = one->reopen() || any;
  }
  conclude();
}

void Twins::conclude() {
  std::vector<const TwinTensor*> tensors;
  for (const std::unique_ptr<Class>& one : classes_)
    for (const TwinTensor& judged : one->tensors) tensors.push_back(&judged);
  engine::conclude(tensors, threads_, results_);
  for (const std::unique_ptr<Class>& one : classes_)
    for (const TwinParameter& parameter : one->parameters)
      for (std::size_t a = 0; a < parameter.answers.size(); ++a) {
        const std::size_t twins = one->family.size() - one->stable;
        const auto judgement =
            one->left
                ? parameter.judgement(a, twins, *one->left, most_times_twins(twins_of(pass_), one->compute))
                : parameter.worst_head(a, twins);
        if (judgement) results_[parameter.answers[a]] = *judgement;
      }
}

const judge::TwinJudgement* Twins::result(const tensor::Tensor& tensor) const {
  const auto found = results_.find(&tensor);
  return found == results_.end() ? nullptr : &found->second;
}

double Twins::stable_rms_ratio(const tensor::Tensor& tensor) const {
  for (const std::unique_ptr<Class>& one : classes_) {
    for (const TwinTensor& judged : one->tensors)
      if (contains(judged.answers, tensor)) return judged.test->stable_rms_ratio();
    for (const TwinParameter& parameter : one->parameters)
      if (contains(parameter.answers, tensor))
        return parameter.largest_rms_ratio(one->family.size() - one->stable);
  }
  return 0;
}

}  // namespace kda_check::engine

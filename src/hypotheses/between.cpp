#include "hypotheses/between.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/names.hpp"
#include "base/threads/parallel.hpp"
#include "hypotheses/cuts.hpp"
#include "hypotheses/errors.hpp"
#include "hypotheses/walk.hpp"
#include "kda/arithmetic/launch_words.hpp"

namespace kda_check::hypotheses {

namespace {

using numeric::DType;

/// Of each tensor.
using TensorValues = std::map<std::string, Differences>;

TensorValues values_of(const kda::Tensors& answer, const kda::Tensors& wanted) {
  TensorValues result;
  for (const auto& [name, tensor] : wanted) result[name] = values(answer.find(name)->second);
  return result;
}

/// 0 where that is not finite.
TensorValues minus(TensorValues a, const TensorValues& b) {
  for (auto& [name, list] : a) {
    const Differences& other = b.at(name);
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i] -= other[i];
      if (!std::isfinite(list[i])) list[i] = 0;
    }
  }
  return a;
}

/// Of squares; infinite where `now` is not finite and the goal is.
double distance(const Differences& now, const Differences& goal) {
  double sum = 0;
  for (std::size_t i = 0; i < now.size(); ++i)
    if (std::isfinite(goal[i])) sum += (now[i] - goal[i]) * (now[i] - goal[i]);
  return std::isfinite(sum) ? sum : std::numeric_limits<double>::infinity();
}

/// `from` in the form of another variant: what both forms have stays, and what only the other has is as usual
/// there. What was not rounded is not rounded yet.
Hypothesis in_form_of(const Hypothesis& from, const Hypothesis& to, const kda::Problem& problem) {
  Hypothesis form = to;
  form.options = from.options;
  form.options.chunk_size = to.options.chunk_size;
  form.options.arithmetic = to.variant->default_arithmetic(problem, from.options.dtype);
  form.options.arithmetic.storage = kda::Storage::none;
  for (const Setting& setting : differing_settings(from, form, problem))
    if (setting.chunk_size == 0 &&
        (setting.point != nullptr ||
         kda::has_axis(to.variant->axes, setting.word.substr(0, setting.word.find('=') + 1))))
      form = with_setting(std::move(form), setting, problem);
  return form;
}

class Walk {
 public:
  Walk(const Computed& a, const Computed& b, int threads)
      : goal_(*a.hypothesis),
        now_(*b.hypothesis),
        threads_(threads),
        cut_(cuts_of(*a.output, a.forward, threads).first),
        start_(cuts_of(*b.output, b.forward, threads).first) {}

  Between run() {
    const kda::Tensors &of_a = cut_.part.recorded, &of_b = start_.part.recorded;
    const TensorValues y_a = values_of(of_a, of_a), y_b = values_of(of_b, of_b);
    whole_ = minus(y_a, y_b);
    measure();
    if (found_.differing == 0) return std::move(found_);
    end_ = computed(goal_, threads_);
    reached_ = computed(now_, start_.part.problem, of_b, threads_);
    found_.left_of_a = mean_of(shares_of(minus(y_a, end_)));
    found_.left_of_b = mean_of(shares_of(minus(reached_, y_b)));
    begin_ = reached_;
    common_steps();
    take_settings();
    take_rest();
    return std::move(found_);
  }

 private:
  using TensorShares = std::vector<std::pair<std::string, double>>;

  const kda::Problem& problem() const { return cut_.part.problem; }

  /// As `recorded` is stored.
  static TensorValues computed(const Hypothesis& one, const kda::Problem& problem,
                               const kda::Tensors& recorded, int threads) {
    kda::RunOptions options = one.options;
    options.threads = threads;
    return values_of(as_recorded(kda::run_pass(one.pass, *one.variant, problem, options), recorded),
                     recorded);
  }
  TensorValues computed(const Hypothesis& one, int threads) const {
    return computed(one, problem(), cut_.part.recorded, threads);
  }

  void measure() {
    for (const auto& [name, tensor] : cut_.part.recorded) {
      const Differences& whole = whole_.at(name);
      found_.elements += whole.size();
      const kda::Tensors& others = start_.part.recorded;
      found_.differing += differing_bits(tensor, others.at(name));
      const double size = rms(cut_.truth.find(name)->second);
      if (size > 0) found_.difference = std::max(found_.difference, rms(whole) / size);
    }
  }

  /// Of the tensors that differ.
  TensorShares shares_of(const TensorValues& change) const {
    TensorShares shares;
    for (const auto& [name, whole] : whole_)
      if (rms(whole) > 0) shares.emplace_back(name, share(change.at(name), whole));
    return shares;
  }
  static double mean_of(const TensorShares& shares) {
    double sum = 0;
    for (const auto& [name, one] : shares) sum += one;
    return shares.empty() ? 0 : sum / static_cast<double>(shares.size());
  }

  /// How far from the goal, of the way from the beginning on; the mean over tensors.
  double left(const TensorValues& values) const {
    double sum = 0;
    for (const auto& [name, goal] : end_) {
      const double way = distance(begin_.at(name), goal), rest = distance(values.at(name), goal);
      sum += way > 0 ? rest / way : rest > 0 ? 1 : 0;
    }
    return sum;
  }

  void take(std::string setting, std::string instead, TensorValues values) {
    TensorShares shares = shares_of(minus(values, reached_));
    const double mean = mean_of(shares);
    found_.steps.push_back({std::move(setting), std::move(instead), mean, std::move(shares)});
    reached_ = std::move(values);
  }

  /// What is not one setting: where gradients start, what is stored, the form.
  void common_steps() {
    const kda::Problem& theirs = start_.part.problem;
    if (problem().initial_state && theirs.initial_state &&
        differing_bits(*problem().initial_state, *theirs.initial_state) > 0)
      take("state that o's computation brings", "",
           computed(now_, problem(), start_.part.recorded, threads_));
    const auto is_other = [&](const auto& one) {
      return one.second.dtype() != start_.part.recorded.at(one.first).dtype();
    };
    if (now_.options.dtype != goal_.options.dtype || std::ranges::any_of(cut_.part.recorded, is_other)) {
      const auto text = [](const Hypothesis& one) {
        return fmt::format("outputs in {}", numeric::name_of(one.options.dtype));
      };
      std::string before = text(now_);
      now_ = with_outputs_in(std::move(now_), goal_.options.dtype, problem());
      if (is_possible(now_, problem())) take(text(now_), std::move(before), computed(now_, threads_));
    }
    if (now_.variant != goal_.variant) {
      std::string before = fmt::format("variant {}", now_.variant->name);
      now_ = in_form_of(now_, goal_, problem());
      if (is_possible(now_, problem()))
        take(fmt::format("variant {}", now_.variant->name), std::move(before), computed(now_, threads_));
    }
  }

  /// Where no setting moves a bit alone, one that others may need: those of the form come before roundings.
  void take_settings() {
    constexpr double nowhere = std::numeric_limits<double>::max();
    const auto candidates = [&](const Hypothesis& now) { return changes(now, goal_, problem()); };
    const auto lefts_of = [&](const std::vector<Change>& list) {
      std::vector<double> lefts(list.size(), nowhere);
      parallel_for(list.size(), threads_, [&](std::size_t i, int) {
        const TensorValues values = computed(list[i].hypothesis, 1);
        if (values != reached_) lefts[i] = std::min(left(values), nowhere / 2);
      });
      return lefts;
    };
    walk(now_, candidates, lefts_of, [&](const Change& change, double left) {
      now_ = change.hypothesis;
      if (left == nowhere)
        found_.without_effect.push_back(change.after);
      else
        take(change.after, change.before, computed(now_, threads_));
      return true;
    });
  }

  /// What is possible together only, and the launch.
  void take_rest() {
    std::vector<std::string> there, instead;
    for (const Setting& setting : differing_settings(goal_, now_, problem())) there.push_back(setting.word);
    for (const Setting& setting : differing_settings(now_, goal_, problem())) instead.push_back(setting.word);
    const kda::Launch &launch = goal_.options.arithmetic.launch, &before = now_.options.arithmetic.launch;
    if (!(launch == before))
      there.push_back("launch=" + kda::words_of(launch)),
          instead.push_back("launch=" + kda::words_of(before));
    if (end_ == reached_)
      found_.without_effect.insert(found_.without_effect.end(), there.begin(), there.end());
    else
      take(join(there, ", "), join(instead, ", "), end_);
  }

  const Hypothesis& goal_;
  Hypothesis now_;
  const int threads_;
  const Cut cut_, start_;
  TensorValues whole_{}, begin_{}, end_{}, reached_{};
  Between found_{};
};

}  // namespace

Between between(const Computed& a, const Computed& b, int threads) {
  const auto is_exact = [](const Computed& one) { return one.hypothesis->options.dtype == DType::fp64; };
  if (!is_exact(a) || is_exact(b)) return Walk(a, b, threads).run();
  // Where nothing is rounded any more there are no steps.
  Between turned = Walk(b, a, threads).run();
  std::ranges::reverse(turned.steps);
  for (Step& step : turned.steps)
    if (!step.instead.empty()) std::swap(step.setting, step.instead);
  std::swap(turned.left_of_a, turned.left_of_b);
  return turned;
}

Hypothesis exact_like(Hypothesis like, numeric::DType dtype) {
  like.options.arithmetic = kda::ideal_arithmetic();
  like.options.dtype = dtype;
  like.preset.clear(), like.change.clear(), like.word.clear();
  return like;
}

}  // namespace kda_check::hypotheses

#include "hypotheses/climb.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "hypotheses/search_limits.hpp"

namespace kda_check::hypotheses {

Scored Climb::from(Scored now) {
  while (now.score < exact_from && !scores_.effort().is_spent()) {
    if (progress_)
      progress_(fmt::format("{} tried, {:.4f} explained", scores_.effort().tried, std::max(now.score, 0.0)));
    if (single(now)) continue;
    if (scores_.is_hopeless(now.hypothesis) || !pairs(now)) break;
  }
  return now;
}

bool Climb::single(Scored& now) {
  std::vector<Hypothesis> list = moves(now.hypothesis, scores_.problem());
  const auto gain_of = [&](const std::string& step) {
    const auto known = gains_.find(step);
    return known == gains_.end() ? 2.0 : known->second;
  };
  const kda::Reduction& reduction = now.hypothesis.options.arithmetic.reduction;
  const auto is_slow = [&](const Hypothesis& one) {
    return !(one.options.arithmetic.reduction == reduction) && cost_of(one.options.arithmetic.reduction) > 1;
  };
  std::ranges::stable_sort(list, std::ranges::greater{}, [&](const Hypothesis& one) {
    return gain_of(one.step) - (is_slow(one) ? 10 : 0);
  });
  const auto first_slow = static_cast<std::size_t>(std::ranges::find_if(list, is_slow) - list.begin());
  steps_.clear();
  for (std::size_t begin = 0, end = 0; begin < list.size(); begin = end) {
    end = std::min(begin + batch, begin < first_slow ? first_slow : list.size());
    const double hoped = gain_of(list[begin].step);
    std::vector<Hypothesis> others;
    std::vector<Scored> some =
        scores_.of(screen_.steps(now.hypothesis,
                                 {std::make_move_iterator(list.begin() + static_cast<std::ptrdiff_t>(begin)),
                                  std::make_move_iterator(list.begin() + static_cast<std::ptrdiff_t>(end))},
                                 &others));
    for (Hypothesis& other : others) some.push_back({std::move(other), screened_out});
    for (Scored& step : some)
      gains_[step.hypothesis.step] = step.score - now.score, steps_.push_back(std::move(step));
    const Scored& best = *std::ranges::max_element(steps_, {}, &Scored::score);
    const double gain = best.score - now.score;
    const bool is_last = end == list.size() || end == first_slow;
    if (gain > single_gain && (is_last || (hoped < 2 && gain > enough_of_hope * hoped))) {
      now = best;
      return true;
    }
  }
  return false;
}

bool Climb::pairs(Scored& now) {
  Scores::sort(steps_);
  std::vector<Hypothesis> list;
  const auto add = [&](const Hypothesis& a, const Hypothesis& b) {
    if (auto both = combined(now.hypothesis, a, b, scores_.problem())) list.push_back(std::move(*both));
  };
  const std::size_t count = std::min(steps_.size(), paired);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = i + 1; j < count; ++j) add(steps_[i].hypothesis, steps_[j].hypothesis);
  if (take_best(now, list, pair_gain)) return true;
  list.clear();
  std::vector<const Hypothesis*> dormant, others, waking;
  const std::string_view first_tried =
      now.hypothesis.options.dtype == numeric::DType::fp16 ? "fp16@" : "bf16@";
  for (const Scored& step : steps_) {
    const std::string& what = step.hypothesis.step;
    if (what.find('@') != std::string::npos && !what.starts_with("none@") && step.score == now.score)
      (what.starts_with(first_tried) ? dormant : others).push_back(&step.hypothesis);
    if (std::ranges::any_of(waking_keys, [&](std::string_view key) { return what.starts_with(key); }))
      waking.push_back(&step.hypothesis);
  }
  for (const Hypothesis* const a : dormant)
    for (const Hypothesis* const b : waking) add(*b, *a);
  if (take_best(now, list, pair_gain)) return true;
  list.clear();
  if (now.score < good_from && !scores_.is_settled(now.hypothesis))
    for (const Hypothesis* const a : others)
      for (const Hypothesis* const b : waking) add(*b, *a);
  return take_best(now, list, pair_gain);
}

bool Climb::take_best(Scored& now, const std::vector<Hypothesis>& list, double gain) {
  Scored best = now;
  for (std::size_t begin = 0; begin < list.size() && !scores_.effort().is_spent(); begin += batch_of_pairs) {
    const auto from = list.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto count = static_cast<std::ptrdiff_t>(std::min(batch_of_pairs, list.size() - begin));
    for (Scored& one : scores_.of(screen_.steps(now.hypothesis, {from, from + count})))
      if (one.score > best.score) best = std::move(one);
  }
  if (best.score <= now.score + gain) return false;
  now = std::move(best);
  return true;
}

}  // namespace kda_check::hypotheses

#include "hypotheses/screen.hpp"

#include <algorithm>

#include "hypotheses/search_limits.hpp"
#include "kda/problem/excerpt.hpp"

namespace kda_check::hypotheses {

namespace {

/// Whether o of a token depends on gates of later ones: a beginning then says nothing of it.
bool reads_beyond(const Hypothesis& hypothesis, std::size_t tokens) {
  const kda::Arithmetic& arithmetic = hypothesis.options.arithmetic;
  if (!hypothesis.variant->axes.chunk || hypothesis.pass == kda::Pass::backward) return false;
  return (arithmetic.decay == kda::DecayForm::anchor_mid &&
          static_cast<std::size_t>(arithmetic.anchor_rows) > tokens) ||
         (arithmetic.readout == kda::Readout::centre && hypothesis.options.chunk_size > tokens);
}

bool is_blind(const Scores& scores, const Hypothesis& hypothesis) {
  return reads_beyond(hypothesis, kda::longest_of(scores.problem().sequences()));
}

std::vector<Hypothesis> passed(Scores& scores, std::vector<Hypothesis> list, double enough,
                               std::vector<Hypothesis>* others = nullptr) {
  std::vector<Hypothesis> good;
  for (Scored& one : scores.of(std::move(list)))
    if (one.score >= enough || is_blind(scores, one.hypothesis))
      good.push_back(std::move(one.hypothesis));
    else if (others != nullptr)
      others->push_back(std::move(one.hypothesis));
  return good;
}

}  // namespace

Screen::Screen(const std::vector<Cut>& small, int threads, Effort& effort) {
  for (const Cut& cut : small) scores_.emplace_back(cut, threads, effort);
}

std::vector<Hypothesis> Screen::steps(const Hypothesis& now, std::vector<Hypothesis> list,
                                      std::vector<Hypothesis>* others) {
  if (scores_.empty() || is_blind(scores_.front(), now)) return list;
  const double here = scores_.front().of(now).score, lost = lost_of_explained + lost_of_rest * (1 - here);
  return passed(scores_.front(), std::move(list), here - lost, others);
}

std::vector<Hypothesis> Screen::ties(const Hypothesis& now, std::vector<Hypothesis> list) {
  for (Scores& scores : scores_)
    if (!is_blind(scores, now))
      list = passed(scores, std::move(list), scores.of(now).score - lost_of_explained);
  return list;
}

std::vector<Hypothesis> Screen::starts(std::vector<Hypothesis> list) {
  if (scores_.empty() || list.empty()) return list;
  std::vector<Scored> near = scores_.front().ranked(std::move(list));
  const double best = near.front().score, far = far_of_explained + far_of_rest * (1 - best);
  std::erase_if(near, [&](const Scored& one) {
    return one.score < best - far && !is_blind(scores_.front(), one.hypothesis);
  });
  near.resize(std::min(near.size(), most_starts));
  std::vector<Hypothesis> good;
  for (Scored& one : near) good.push_back(std::move(one.hypothesis));
  return good;
}

}  // namespace kda_check::hypotheses

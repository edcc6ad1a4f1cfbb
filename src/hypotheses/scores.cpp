#include "hypotheses/scores.hpp"

#include <algorithm>
#include <set>

#include "base/threads/parallel.hpp"
#include "hypotheses/search_limits.hpp"

namespace kda_check::hypotheses {

namespace {

double size_of(const Cut& cut) {
  const kda::Dimensions& d = cut.part.problem.dimensions();
  return static_cast<double>(d.B * d.T * d.HV);
}

}  // namespace

double cost_of(const kda::Reduction& reduction) {
  switch (reduction.kind) {
    case kda::ReductionKind::sequential:
    case kda::ReductionKind::mma:
    case kda::ReductionKind::lanes:
    case kda::ReductionKind::lanes_paired:
    case kda::ReductionKind::xla:
    case kda::ReductionKind::simt:
      return 1;
    case kda::ReductionKind::split:
    case kda::ReductionKind::exact:
      return 25;
    default:
      return 8;
  }
}

Effort::Effort(const Cut& first, double most_of_all) : whole(size_of(first)), most(most_of_all) {}
bool Effort::is_spent() const { return spent >= most; }

Scores::Scores(const Cut& cut, int threads, Effort& effort)
    : cut_(cut),
      threads_(threads),
      effort_(effort),
      measured_(cut.part.problem, cut.part.recorded, cut.truth, cut.from_token) {}

kda::Tensors Scores::prediction(const Hypothesis& hypothesis, int threads) const {
  kda::RunOptions options = hypothesis.options;
  options.threads = threads;
  return as_recorded(kda::run_pass(hypothesis.pass, *hypothesis.variant, problem(), options),
                     cut_.part.recorded);
}

Explained::Given Scores::given_by(const Hypothesis& hypothesis) const {
  return measured_.given_by(prediction(hypothesis));
}

bool Scores::is_settled(const Hypothesis& hypothesis) const {
  const kda::Tensors predicted = prediction(hypothesis);
  const auto share = [&](double least) { return mean_of(measured_.blocks_explained_by(predicted, least)); };
  const double some = share(0.2);
  return least_of(measured_.blocks_explained_by(predicted, exact_from), 0) >= settled_from &&
         some <= 1 - partly_explained && some - share(0.98) <= partly_explained;
}

bool Scores::is_hopeless(const Hypothesis& hypothesis) const {
  return mean_of(measured_.blocks_explained_by(prediction(hypothesis), 0.5)) < hopeless_below;
}

std::vector<Scored> Scores::of(std::vector<Hypothesis> list) {
  std::vector<Scored> all(list.size());
  std::vector<std::string> names(list.size());
  std::vector<std::size_t> fresh;
  std::set<std::string> asked;
  for (std::size_t i = 0; i < list.size(); ++i) {
    names[i] = identity(list[i], problem());
    all[i].hypothesis = std::move(list[i]);
    if (!known_.contains(names[i]) && asked.insert(names[i]).second) fresh.push_back(i);
  }
  std::vector<double> scores(fresh.size());
  parallel_for(fresh.size(), threads_, [&](std::size_t i, int) {
    scores[i] = mean_of(measured_.robustly_by(prediction(all[fresh[i]].hypothesis, 1)));
  });
  for (std::size_t i = 0; i < fresh.size(); ++i) known_[names[fresh[i]]] = scores[i];
  effort_.tried += fresh.size();
  for (const std::size_t one : fresh)
    effort_.spent +=
        size_of(cut_) / effort_.whole * cost_of(all[one].hypothesis.options.arithmetic.reduction);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].score = known_.at(names[i]);
  return all;
}

Scored Scores::of(Hypothesis hypothesis) {
  std::vector<Hypothesis> one;
  one.push_back(std::move(hypothesis));
  return of(std::move(one)).front();
}

std::vector<Scored> Scores::ranked(std::vector<Hypothesis> list) {
  std::vector<Scored> all = of(std::move(list));
  sort(all);
  return all;
}

void Scores::sort(std::vector<Scored>& list) {
  std::ranges::stable_sort(list, std::ranges::greater{}, &Scored::score);
}

}  // namespace kda_check::hypotheses

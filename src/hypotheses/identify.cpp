#include "hypotheses/identify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/threads/parallel.hpp"
#include "hypotheses/cuts.hpp"
#include "hypotheses/explained.hpp"
#include "hypotheses/launch_search.hpp"

namespace kda_check::hypotheses {

namespace {

// Calibrated by tests/hypotheses/identify.cpp (docs/explain.md, "How often it finds what is there").
constexpr std::size_t fewest_errors =
    2000;  ///< of noise 2000 elements and e^7 ways explain 2 ln(ways) / n = 0.7 %
constexpr double identified_from = 0.9;    ///< explained, on both cuts
constexpr double exact_from = 0.99999;     ///< nothing is left to search for
constexpr double settled_from = 0.3;       ///< blocks explained to the bit, to end a search
constexpr double partly_explained = 0.05;  ///< blocks, then
constexpr double good_from = 0.995;        ///< other starts need not be climbed
constexpr double enough_of_hope = 0.5;     ///< of what a step gained before
constexpr double most_spent = 5000;        ///< a bound in seconds would make words depend on the load
constexpr std::size_t batch = 24;          ///< steps that are tried together
constexpr std::size_t batch_of_pairs = 240;
constexpr double screened_out = -2;  ///< in place of a score
/// Settings that bring roundings to bear that nothing came past.
constexpr std::string_view waking_keys[] = {
    "decay=", "inverse=", "tail=", "delta=", "beta=", "scale=", "output=", "update="};
constexpr double single_gain = 5e-4, pair_gain = 1e-3;  ///< that a step must gain
constexpr double tie = 1e-4;                            ///< what settings that cannot be told apart differ in
/// A step that loses more of the smallest cut is not tried on the whole one: of what is explained there, of
/// what is not.
constexpr double lost_of_explained = 5e-3, lost_of_rest = 5e-2;
constexpr std::size_t most_starts = 60;                       ///< that are tried on the whole cut
constexpr double far_of_explained = 5e-2, far_of_rest = 0.3;  ///< the same of a start, below the best
constexpr double launch_from = 0.5;                           ///< below it a launch is not what is missing
constexpr double hopeless_below = 0.05;                       ///< blocks of which half is explained
constexpr double order_of_sums = 0.05;                        ///< explained by it alone, in 16 bits
constexpr std::size_t climbed = 4;                            ///< starts
constexpr std::size_t paired = 9;                             ///< single steps

struct Scored {
  Hypothesis hypothesis;
  double score = -2;
};

/// How many times as long as others an order of sums takes. Slow ones are tried where nothing else gains.
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

std::size_t size_of(const Cut& cut) {
  const kda::Dimensions& d = cut.part.problem.dimensions();
  return d.B * d.T * d.HV;
}

/// Of one search, all cuts together.
struct Effort {
  double whole;           ///< tokens and heads of the first cut
  std::size_t tried = 0;  ///< computations
  double spent = 0;       ///< in computations on the first cut, in an order of sums that is not slow
};

/// What computations explain of one cut; none is computed twice.
class Scores {
 public:
  Scores(const Cut& cut, const SearchSettings& settings, Effort& effort)
      : cut_(cut),
        settings_(settings),
        effort_(effort),
        measured_(cut.part.recorded, cut.truth, cut.from_token) {}

  const kda::Problem& problem() const { return cut_.part.problem; }
  const Explained& measured() const { return measured_; }
  std::size_t tried() const { return effort_.tried; }
  bool is_spent() const { return effort_.spent >= most_spent; }

  kda::Tensors prediction(const Hypothesis& hypothesis, int threads) const {
    kda::RunOptions options = hypothesis.options;
    options.threads = threads;
    return as_recorded(kda::run_pass(hypothesis.pass, *hypothesis.variant, problem(), options),
                       cut_.part.recorded);
  }

  /// Many blocks are explained to the bit, some not at all, few in part: what is left is a fault, and no
  /// setting.
  bool is_settled(const Hypothesis& hypothesis) const {
    const kda::Tensors predicted = prediction(hypothesis, settings_.threads);
    const auto share = [&](double least) { return measured_.blocks_explained_by(predicted, least); };
    const double some = share(0.2);
    return measured_.fewest_blocks_explained_by(predicted, exact_from) >= settled_from &&
           some <= 1 - partly_explained && some - share(0.98) <= partly_explained;
  }

  /// Next to no block is explained: pairs of steps will not change that.
  bool is_hopeless(const Hypothesis& hypothesis) const {
    return measured_.blocks_explained_by(prediction(hypothesis, settings_.threads), 0.5) < hopeless_below;
  }

  std::vector<Scored> of(std::vector<Hypothesis> list) {
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
    parallel_for(fresh.size(), settings_.threads, [&](std::size_t i, int) {
      scores[i] = measured_.robustly_by(prediction(all[fresh[i]].hypothesis, 1));
    });
    for (std::size_t i = 0; i < fresh.size(); ++i) known_[names[fresh[i]]] = scores[i];
    effort_.tried += fresh.size();
    for (const std::size_t one : fresh)
      effort_.spent += static_cast<double>(size_of(cut_)) / effort_.whole *
                       cost_of(all[one].hypothesis.options.arithmetic.reduction);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].score = known_.at(names[i]);
    return all;
  }
  Scored of(Hypothesis hypothesis) {
    std::vector<Hypothesis> one;
    one.push_back(std::move(hypothesis));
    return of(std::move(one)).front();
  }
  /// The best first; of those that are as good the first.
  std::vector<Scored> ranked(std::vector<Hypothesis> list) {
    std::vector<Scored> all = of(std::move(list));
    sort(all);
    return all;
  }
  static void sort(std::vector<Scored>& list) {
    std::ranges::stable_sort(list, std::ranges::greater{}, &Scored::score);
  }

 private:
  const Cut& cut_;
  const SearchSettings& settings_;
  Effort& effort_;
  const Explained measured_;
  std::map<std::string, double> known_{};  ///< by identity
};

const std::vector<Cut> no_cuts{};

/// Whether o of a token depends on gates of later ones: a beginning then says nothing of it.
bool reads_beyond(const Hypothesis& hypothesis, std::size_t tokens) {
  const kda::Arithmetic& arithmetic = hypothesis.options.arithmetic;
  if (!hypothesis.variant->axes.chunk || hypothesis.pass == kda::Pass::backward) return false;
  return (arithmetic.decay == kda::DecayForm::anchor_mid &&
          static_cast<std::size_t>(arithmetic.anchor_rows) > tokens) ||
         (arithmetic.readout == kda::Readout::centre && hypothesis.options.chunk_size > tokens);
}

/// What is not worth a try on the whole cut, because it explains too little of a small one.
class Screen {
 public:
  /// Without small cuts everything is worth a try.
  Screen(const std::vector<Cut>& small, const SearchSettings& settings, Effort& effort) {
    for (const Cut& cut : small) scores_.emplace_back(cut, settings, effort);
  }

  /// The steps from `now` that do not lose on the smallest cut; `others` gets those that do.
  std::vector<Hypothesis> steps(const Hypothesis& now, std::vector<Hypothesis> list,
                                std::vector<Hypothesis>* others = nullptr) {
    if (scores_.empty() || is_blind(scores_.front(), now)) return list;
    const double here = scores_.front().of(now).score, lost = lost_of_explained + lost_of_rest * (1 - here);
    return passed(scores_.front(), std::move(list), here - lost, others);
  }
  /// The steps that lose on none.
  std::vector<Hypothesis> ties(const Hypothesis& now, std::vector<Hypothesis> list) {
    for (Scores& scores : scores_)
      if (!is_blind(scores, now))
        list = passed(scores, std::move(list), scores.of(now).score - lost_of_explained);
    return list;
  }
  /// The starts that come near the best of them.
  std::vector<Hypothesis> starts(std::vector<Hypothesis> list) {
    if (scores_.empty() || list.empty()) return list;
    const double best = scores_.front().ranked(list).front().score,
                 far = far_of_explained + far_of_rest * (1 - best);
    std::vector<Scored> near;
    for (Hypothesis& one : passed(scores_.front(), std::move(list), best - far))
      near.push_back(scores_.front().of(std::move(one)));
    Scores::sort(near);
    near.resize(std::min(near.size(), most_starts));
    std::vector<Hypothesis> good;
    for (Scored& one : near) good.push_back(std::move(one.hypothesis));
    return good;
  }

 private:
  static bool is_blind(const Scores& scores, const Hypothesis& hypothesis) {
    return reads_beyond(hypothesis, kda::longest_of(scores.problem().sequences()));
  }

  static std::vector<Hypothesis> passed(Scores& scores, std::vector<Hypothesis> list, double enough,
                                        std::vector<Hypothesis>* others = nullptr) {
    std::vector<Hypothesis> good;
    for (Scored& one : scores.of(std::move(list)))
      if (one.score >= enough || is_blind(scores, one.hypothesis))
        good.push_back(std::move(one.hypothesis));
      else if (others != nullptr)
        others->push_back(std::move(one.hypothesis));
    return good;
  }

  std::deque<Scores> scores_{};
};

/// From one computation to better ones.
class Climb {
 public:
  Climb(Scores& scores, Screen& screen, const SearchSettings& settings)
      : scores_(scores), screen_(screen), settings_(settings) {}

  /// Single settings as long as one gains, then pairs.
  Scored from(Scored now) {
    while (now.score < exact_from && !scores_.is_spent()) {
      if (settings_.progress)
        settings_.progress(
            fmt::format("{} tried, {:.4f} explained", scores_.tried(), std::max(now.score, 0.0)));
      if (single(now)) continue;
      if (scores_.is_hopeless(now.hypothesis) || !pairs(now)) break;
    }
    return now;
  }

 private:
  /// One setting that gains. What gained most before is tried first: a step changes what others gain, but
  /// mostly not much.
  bool single(Scored& now) {
    std::vector<Hypothesis> list = moves(now.hypothesis, scores_.problem());
    const auto gain_of = [&](const std::string& step) {
      const auto known = gains_.find(step);
      return known == gains_.end() ? 2.0 : known->second;
    };
    const kda::Reduction& reduction = now.hypothesis.options.arithmetic.reduction;
    const auto is_slow = [&](const Hypothesis& one) {
      return !(one.options.arithmetic.reduction == reduction) &&
             cost_of(one.options.arithmetic.reduction) > 1;
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
      std::vector<Scored> some = scores_.of(
          screen_.steps(now.hypothesis,
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

  /// Two settings that gain together: of the best single ones; of one that changes nothing alone and what may
  /// bring it to bear.
  bool pairs(Scored& now) {
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

  bool take_best(Scored& now, const std::vector<Hypothesis>& list, double gain) {
    Scored best = now;
    for (std::size_t begin = 0; begin < list.size() && !scores_.is_spent(); begin += batch_of_pairs) {
      const auto from = list.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto count = static_cast<std::ptrdiff_t>(std::min(batch_of_pairs, list.size() - begin));
      for (Scored& one : scores_.of(screen_.steps(now.hypothesis, {from, from + count})))
        if (one.score > best.score) best = std::move(one);
    }
    if (best.score <= now.score + gain) return false;
    now = std::move(best);
    return true;
  }

  Scores& scores_;
  Screen& screen_;
  const SearchSettings& settings_;
  std::map<std::string, double> gains_{};  ///< of steps, when they were tried last
  std::vector<Scored> steps_{};            ///< from the computation that was last
};

class Search {
 public:
  Search(const RecordedOutput& whole, numeric::DType dtype, const SearchSettings& settings)
      : whole_(whole),
        dtype_(dtype),
        settings_(settings),
        cuts_(cuts_of(whole, settings.forward, settings.threads)),
        effort_{static_cast<double>(size_of(cuts_.first))},
        scores_(cuts_.first, settings, effort_),
        screen_(cuts_.small_are_exact ? cuts_.small : no_cuts, settings, effort_) {}

  Identification run() {
    Identification found;
    found.errors = scores_.measured().errors();
    found.relative_error = scores_.measured().relative_error();
    found.not_finite = scores_.measured().not_finite();
    if (found.errors == 0) return found;
    std::vector<Scored> best = scores_.ranked(screen_.starts(known_kernels()));
    for (std::size_t i = 0; i < std::min(best.size(), climbed); ++i) with_launch(best[i]);
    Scores::sort(best);
    Scored now = best.front();
    if (now.score < exact_from && found.errors >= fewest_errors) {
      for (Scored& one : scores_.of(screen_.starts(plain_starts(problem(), dtype_, whole_.pass()))))
        best.push_back(std::move(one));
      Scores::sort(best);
      now = searched(best);
      simplify(now);
    }
    found.cannot_be_told_apart = ties(now);
    found.hypothesis = now.hypothesis;
    conclude(found);
    return found;
  }

 private:
  const kda::Problem& problem() const { return scores_.problem(); }

  std::vector<Hypothesis> known_kernels() const {
    std::vector<Hypothesis> list = starts(problem(), dtype_, whole_.pass());
    std::erase_if(list, [&](const Hypothesis& one) {
      return std::ranges::find(settings_.without_presets, one.preset) != settings_.without_presets.end();
    });
    return list;
  }

  /// The launch that leaves the fewest bits, where one is open.
  void with_launch(Scored& one) {
    if (one.score >= 1 || one.score < launch_from) return;
    const bool has_more = one.hypothesis.pass == kda::Pass::backward && one.hypothesis.variant->axes.chunk &&
                          kda::is_triton(one.hypothesis.options.arithmetic.reduction);
    if (!has_more && !has_open_launch(*one.hypothesis.variant, one.hypothesis.options)) return;
    kda::RunOptions options = one.hypothesis.options;
    options.threads = settings_.threads;
    Hypothesis with = one.hypothesis;
    with.options.arithmetic.launch = launch_of(*one.hypothesis.variant, cuts_.first.part, options).launch;
    Scored scored = scores_.of(std::move(with));
    if (scored.score > one.score) one = std::move(scored);
  }

  /// Climbed from the best starts; where that does not end well, from the best of what explains the first
  /// tokens: there no state has been read yet, and fewer settings count.
  Scored searched(const std::vector<Scored>& starts) {
    Scored best = starts.front();
    const auto climb = [&](Scored start) {
      start = Climb(scores_, screen_, settings_).from(in_quick_order(std::move(start)));
      with_launch(start);
      if (start.score > best.score) best = std::move(start);
      return best.score >= good_from || scores_.is_spent() || scores_.is_settled(best.hypothesis);
    };
    if (climb(starts.front())) return best;
    for (Hypothesis& one : moves(Hypothesis(best.hypothesis), problem()))
      if (one.step.starts_with("chunk-size=") && !scores_.is_hopeless(best.hypothesis) &&
          climb(scores_.of(std::move(one))))
        return best;
    std::vector<Hypothesis> beginning{best.hypothesis};
    for (std::size_t i = 0; i < starts.size(); ++i) beginning.push_back(starts[i].hypothesis);
    bool is_hopeless = scores_.is_hopeless(best.hypothesis);
    Screen all_pass(no_cuts, settings_, effort_);
    for (const Cut& cut : cuts_.small) {
      Scores scores(cut, settings_, effort_);
      const std::vector<Scored> ranked = unlike(scores.ranked(std::move(beginning)));
      beginning.clear();
      for (const Scored& one : ranked) {
        beginning.push_back(Climb(scores, all_pass, settings_).from(one).hypothesis);
        if (scores.is_hopeless(beginning.front())) break;
      }
      is_hopeless = is_hopeless && scores.is_hopeless(beginning.front());
    }
    if (is_hopeless) return best;
    if (!cuts_.small.empty())
      for (Scored& one : scores_.ranked(std::move(beginning)))
        if (climb(std::move(one))) return best;
    for (const Scored& one : unlike(starts))
      if (climb(one)) return best;
    return best;
  }

  /// The same in an order of sums that is no slow one, where hardly less is explained then.
  Scored in_quick_order(Scored start) {
    if (cost_of(start.hypothesis.options.arithmetic.reduction) == 1) return start;
    std::vector<Hypothesis> list;
    for (const char* const word : {"reduction=sequential", "reduction=mma:25"}) {
      Hypothesis quick = with_setting(start.hypothesis, {word}, problem());
      if (is_possible(quick, problem())) list.push_back(std::move(quick));
    }
    std::vector<Scored> ranked = scores_.ranked(std::move(list));
    return !ranked.empty() && ranked.front().score >= start.score - order_of_sums ? std::move(ranked.front())
                                                                                  : start;
  }

  /// The best of each way to form decays and to apply beta, which a climb hardly leaves; a recurrence among
  /// them.
  static std::vector<Scored> unlike(const std::vector<Scored>& ranked) {
    std::vector<Scored> list;
    bool has_recurrence = false;
    for (const Scored& one : ranked) {
      const kda::Arithmetic& arithmetic = one.hypothesis.options.arithmetic;
      const bool is_chunk = one.hypothesis.variant->axes.chunk;
      const bool is_there = is_chunk ? std::ranges::any_of(list,
                                                           [&](const Scored& other) {
                                                             const kda::Arithmetic& theirs =
                                                                 other.hypothesis.options.arithmetic;
                                                             return other.hypothesis.variant->axes.chunk &&
                                                                    theirs.decay == arithmetic.decay &&
                                                                    theirs.beta == arithmetic.beta;
                                                           })
                                     : has_recurrence;
      if (is_there || (is_chunk && list.size() >= climbed)) continue;
      has_recurrence = has_recurrence || !is_chunk;
      list.push_back(one);
    }
    return list;
  }

  /// Of settings that explain as much, the fewest: those of a start, where they cost nothing.
  void simplify(Scored& now) {
    const double enough = now.score - tie;
    std::vector<Hypothesis> bases = known_kernels();
    std::erase_if(bases, [&](const Hypothesis& base) { return base.variant != now.hypothesis.variant; });
    std::ranges::stable_sort(bases, {}, [&](const Hypothesis& base) {
      return differing_settings(base, now.hypothesis, problem()).size();
    });
    bases.resize(std::min<std::size_t>(bases.size(), 3));
    std::vector<Scored> simple;
    for (const Hypothesis& base : bases) {
      Scored one = now;
      for (bool is_simpler = true; is_simpler;) {
        is_simpler = false;
        std::vector<Hypothesis> back;
        for (const Setting& setting : differing_settings(base, one.hypothesis, problem()))
          back.push_back(with_setting(one.hypothesis, setting, problem()));
        std::erase_if(back,
                      [&](const Hypothesis& hypothesis) { return !is_possible(hypothesis, problem()); });
        const std::vector<Scored> tries = scores_.ranked(std::move(back));
        if (!tries.empty() && tries.front().score >= enough) one = tries.front(), is_simpler = true;
      }
      one.hypothesis = described_from(base, std::move(one.hypothesis), problem());
      simple.push_back(std::move(one));
    }
    if (!simple.empty())
      now = *std::ranges::min_element(simple, {}, [](const Scored& one) { return one.hypothesis.changes; });
  }

  std::vector<std::string> ties(const Scored& now) {
    std::vector<std::string> words;
    for (const Scored& other : scores_.ranked(screen_.ties(now.hypothesis, moves(now.hypothesis, problem()))))
      if (other.score >= now.score - tie) words.push_back(other.hypothesis.step);
    return words;
  }

  /// Several launches may leave nothing of the first cut; one of them leaves less of the second.
  void settle_launch(Identification& found, const Scores& second) {
    const kda::Arithmetic& arithmetic = found.hypothesis.options.arithmetic;
    if (found.differing > 0 || !found.hypothesis.variant->axes.chunk || !kda::is_triton(arithmetic.reduction))
      return;
    kda::RunOptions options = found.hypothesis.options;
    options.threads = settings_.threads;
    Hypothesis other = found.hypothesis;
    other.options.arithmetic.launch = launch_of(*other.variant, cuts_.second->part, options).launch;
    const RecordedPart& first = cuts_.first.part;
    if (differing_bits(scores_.prediction(other, settings_.threads), first.recorded) == 0 &&
        second.measured().by(second.prediction(other, settings_.threads)) >
            second.measured().by(second.prediction(found.hypothesis, settings_.threads)))
      found.hypothesis = std::move(other);
  }

  void conclude(Identification& found) {
    const kda::Tensors predicted = scores_.prediction(found.hypothesis, settings_.threads);
    found.explained = scores_.measured().by(predicted);
    found.differing = differing_bits(predicted, cuts_.first.part.recorded);
    for (const auto& [name, tensor] : cuts_.first.part.recorded) found.elements += tensor.size();
    double least = scores_.measured().robustly_by(predicted);
    found.blocks = scores_.measured().blocks_explained_by(predicted, good_from);
    if (cuts_.second) {
      const Scores second(*cuts_.second, settings_, effort_);
      if (second.measured().errors() >= fewest_errors) {
        settle_launch(found, second);
        const kda::Tensors again = second.prediction(found.hypothesis, settings_.threads);
        found.again = second.measured().by(again);
        found.not_finite += second.measured().not_finite();
        least = std::min(least, second.measured().robustly_by(again));
        found.blocks = std::min(found.blocks, second.measured().blocks_explained_by(again, good_from));
      }
    }
    found.tried = effort_.tried;
    found.end = found.errors < fewest_errors && found.differing > 0        ? Identity::too_few_errors
                : least >= identified_from || found.blocks >= settled_from ? Identity::identified
                                                                           : Identity::stranger;
    if (found.end == Identity::identified)
      found.shares = shares_of(found.hypothesis, cuts_.first, settings_.threads);
  }

  const RecordedOutput& whole_;
  const numeric::DType dtype_;
  const SearchSettings& settings_;
  const Cuts cuts_;
  Effort effort_;
  Scores scores_;
  Screen screen_;
};

}  // namespace

Identification identify(const RecordedOutput& recorded, numeric::DType dtype,
                        const SearchSettings& settings) {
  if (recorded.tensors().empty()) return {};
  return Search(recorded, dtype, settings).run();
}

}  // namespace kda_check::hypotheses

#include "hypotheses/identify.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "hypotheses/climb.hpp"
#include "hypotheses/launch_search.hpp"
#include "hypotheses/search_limits.hpp"
#include "hypotheses/walk.hpp"

namespace kda_check::hypotheses {

namespace {

const std::vector<Cut> no_cuts{};

bool is_zero(const kda::Tensors& output) {
  return std::ranges::all_of(output, [](const auto& one) {
    return std::ranges::all_of(values(one.second), [](double value) { return value == 0; });
  });
}

class Search {
 public:
  Search(const RecordedOutput& whole, numeric::DType dtype, const SearchSettings& settings)
      : whole_(whole),
        dtype_(dtype),
        settings_(settings),
        cuts_(cuts_of(whole, settings.forward, settings.threads)),
        effort_(cuts_.first, settings.most_spent),
        scores_(cuts_.first, settings.threads, effort_),
        screen_(cuts_.small_are_exact ? cuts_.small : no_cuts, settings.threads, effort_) {}

  Identification run() {
    Identification found;
    found.errors = scores_.measured().errors();
    found.relative_error = scores_.measured().relative_error();
    found.not_finite = scores_.measured().not_finite();
    if (found.errors == 0) return found;
    if (is_zero(cuts_.first.part.recorded)) {  // so is what any computation gives that flushes
      found.end = Identity::stranger;
      return found;
    }
    std::vector<Scored> best = said();
    if (best.empty() || best.front().score < good_from) {
      for (Scored& one : scores_.ranked(screen_.starts(known_kernels()))) best.push_back(std::move(one));
      Scores::sort(best);
      if (!settings_.starts_only)
        for (std::size_t i = 0; i < std::min(best.size(), climbed); ++i) with_launch(best[i]);
      Scores::sort(best);
    }
    if (best.empty()) {  // no known computation is one of such a problem
      found.end = Identity::stranger;
      return found;
    }
    std::optional<Scored> sure = sure_one(best);
    Scored now = sure.value_or(best.front());
    if (settings_.starts_only) {
      if (!sure) {
        now = licensed_one(best);
        if (now.score >= identified_from && now.score < 1) with_other_chunks(now);
      }
      found.hypothesis = now.hypothesis;
      conclude(found);
      return found;
    }
    const bool has_enough = found.errors >= fewest_errors;
    const bool may_be_another = has_enough && !sure && mean_of(by(now)) < identified_from;
    if (may_be_another || (has_enough && now.score < exact_from)) {
      const auto compute = settings_.licence ? settings_.licence->compute : numeric::ComputeFormat::fp64;
      for (Scored& one : scores_.of(screen_.starts(plain_starts(problem(), dtype_, compute, whole_.pass()))))
        best.push_back(std::move(one));
      Scores::sort(best);
    }
    if (has_enough && !sure && now.score < exact_from) {
      now = searched(best);
      simplify(now);
    } else if (may_be_another) {
      double most = -2;
      for (const Scored& one : as_good_as_first(best))
        if (const double share = mean_of(by(one)); share > most) most = share, now = one;
    }
    const bool has_rest = now.score < exact_from || least_of(by(now), 1) < identified_from;
    if (has_enough && now.score >= identified_from && has_rest) polish(now);
    if (!sure && settings_.licence && !is_allowed(now.hypothesis)) {
      Scored other = scores_.of(licensed(now.hypothesis, *settings_.licence, problem()));
      if (other.score >= now.score - as_good) {
        if (identity(other.hypothesis, problem()) != identity(now.hypothesis, problem()))
          other.hypothesis = described(std::move(other.hypothesis));
        now = std::move(other);
      }
    }
    if (settings_.ties) found.cannot_be_told_apart = ties(now);
    found.hypothesis = now.hypothesis;
    conclude(found);
    return found;
  }

 private:
  const kda::Problem& problem() const { return scores_.problem(); }
  /// Of each tensor, as rows are: a factor of each block is none of a token's where there is but one.
  std::vector<double> by(const Scored& one) const {
    return scores_.measured().by(scores_.prediction(one.hypothesis));
  }

  /// Those that explain as much as the first, which is the best.
  static std::span<const Scored> as_good_as_first(const std::vector<Scored>& best) {
    const auto is_worse = [&](const Scored& one) { return one.score < best.front().score - as_good; };
    return {best.begin(), std::ranges::find_if(best, is_worse)};
  }
  /// Of these one that gives most of it to the bit, which is no chance, whatever a fault does to scores.
  std::optional<Scored> sure_one(const std::vector<Scored>& best) const {
    for (const Scored& one : as_good_as_first(best))
      if (scores_.given_by(one.hypothesis).is_most) return one;
    return std::nullopt;
  }
  /// Of these one that need not be excused, if there is one.
  Scored licensed_one(const std::vector<Scored>& best) const {
    for (const Scored& one : as_good_as_first(best))
      if (!settings_.licence || is_allowed(one.hypothesis)) return one;
    return best.front();
  }

  /// What is said of the output, and of gradients what computed o: nobody need look further where that is it.
  std::vector<Scored> said() {
    std::vector<Hypothesis> list;
    for (const Hypothesis* const one : {settings_.forward, settings_.declared})
      if (one != nullptr) {
        list.push_back(*one);
        list.back().pass = whole_.pass();
      }
    std::erase_if(list, [&](const Hypothesis& one) { return !is_possible(one, problem()); });
    return scores_.ranked(std::move(list));
  }

  bool is_as_declared(const Hypothesis& found) {
    if (settings_.declared == nullptr) return true;
    Hypothesis said = *settings_.declared;
    said.pass = whole_.pass();
    return !is_possible(said, problem()) ||
           scores_.of(std::move(said)).score >= scores_.of(found).score - as_good;
  }

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
    with.options.arithmetic.launch = launch_of(*one.hypothesis.variant, cuts_.first.part, options);
    Scored scored = scores_.of(std::move(with));
    if (scored.score > one.score) one = std::move(scored);
  }

  /// In chunks as hardly anybody has them, which differ in few tokens.
  void with_other_chunks(Scored& one) {
    std::vector<Hypothesis> list = moves(one.hypothesis, problem());
    std::erase_if(list, [](const Hypothesis& other) { return !other.step.starts_with("chunk-size="); });
    for (Hypothesis& other : list) other = described_from(one.hypothesis, std::move(other), problem());
    for (Scored& other : scores_.ranked(std::move(list)))
      if (other.score > one.score) one = std::move(other);
  }

  /// Climbed from the best starts; where that does not end well, from the best of what explains the first
  /// tokens: there no state has been read yet, and fewer settings count.
  Scored searched(const std::vector<Scored>& starts) {
    Scored best = starts.front();
    const auto climb = [&](Scored start) {
      start = Climb(scores_, screen_, settings_.progress).from(in_quick_order(std::move(start)));
      with_launch(start);
      if (start.score > best.score) best = std::move(start);
      return best.score >= good_from || effort_.is_spent() || scores_.is_settled(best.hypothesis);
    };
    if (climb(starts.front())) return best;
    for (Hypothesis& one : moves(best.hypothesis, problem()))
      if (one.step.starts_with("chunk-size=") && !scores_.is_hopeless(best.hypothesis) &&
          climb(scores_.of(std::move(one))))
        return best;
    std::vector<Hypothesis> beginning{best.hypothesis};
    for (std::size_t i = 0; i < starts.size(); ++i) beginning.push_back(starts[i].hypothesis);
    bool is_hopeless = scores_.is_hopeless(best.hypothesis);
    Screen all_pass(no_cuts, settings_.threads, effort_);
    for (const Cut& cut : cuts_.small) {
      Scores scores(cut, settings_.threads, effort_);
      const std::vector<Scored> ranked = unlike(scores.ranked(std::move(beginning)));
      beginning.clear();
      for (const Scored& one : ranked) {
        beginning.push_back(Climb(scores, all_pass, settings_.progress).from(one).hypothesis);
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

  /// Of the same variant, those that differ in the fewest settings first.
  std::vector<Hypothesis> nearest_starts(const Hypothesis& one) const {
    std::vector<Hypothesis> bases = known_kernels();
    std::erase_if(bases, [&](const Hypothesis& base) { return base.variant != one.variant; });
    std::ranges::stable_sort(
        bases, {}, [&](const Hypothesis& base) { return differing_settings(base, one, problem()).size(); });
    return bases;
  }

  Hypothesis described(Hypothesis one) const {
    const std::vector<Hypothesis> bases = nearest_starts(one);
    return bases.empty() ? one : described_from(bases.front(), std::move(one), problem());
  }

  /// Of settings that explain as much, the fewest: those of a start, where they cost nothing.
  void simplify(Scored& now) {
    const double enough = now.score - tie;
    std::vector<Hypothesis> bases = nearest_starts(now.hypothesis);
    bases.resize(std::min<std::size_t>(bases.size(), 3));
    std::vector<Scored> simple;
    for (const Hypothesis& base : bases) {
      Scored one = now;
      const auto back = [&](const Hypothesis& from) { return changes(from, base, problem()); };
      const auto lefts_of = [&](const std::vector<Change>& list) {
        std::vector<Hypothesis> tries;
        for (const Change& change : list) tries.push_back(change.hypothesis);
        std::vector<double> lefts;
        for (const Scored& tried : scores_.of(std::move(tries))) lefts.push_back(-tried.score);
        return lefts;
      };
      walk(now.hypothesis, back, lefts_of, [&](const Change& change, double left) {
        if (-left < enough) return false;
        one = {change.hypothesis, -left};
        return true;
      });
      one.hypothesis = described_from(base, std::move(one.hypothesis), problem());
      simple.push_back(std::move(one));
    }
    if (!simple.empty())
      now = *std::ranges::min_element(simple, {}, [](const Scored& one) { return one.hypothesis.changes; });
  }

  /// What a computation leaves of the squares of the error: it tells whether single elements are explained,
  /// which scores hardly do.
  double left_by(const Hypothesis& one) const {
    const kda::Tensors predicted = scores_.prediction(one);
    double left = 0;
    for (const auto& [name, tensor] : cuts_.first.part.recorded) {
      const double error = rms(difference(tensor, cuts_.first.truth.find(name)->second)),
                   rest = rms(difference(tensor, predicted.at(name)));
      if (error > 0) left += rest * rest / (error * error);
    }
    return left;
  }

  /// By what each leaves of the squares the first of those that leave as much.
  std::map<double, Hypothesis> polished(const Hypothesis& now) const {
    std::map<double, Hypothesis> found;
    for (Hypothesis& one : moves(now, problem())) {
      const double cost = cost_of(one.options.arithmetic.reduction);
      if (cost > std::max(1.0, cost_of(now.options.arithmetic.reduction))) continue;
      if (settings_.licence && !is_allowed(one)) continue;
      const double left = left_by(one);
      found.try_emplace(left, std::move(one));
    }
    return found;
  }

  /// Settings as long as one leaves half of what those before it leave; two at once where little is
  /// explained.
  void polish(Scored& now) {
    double left = left_by(now.hypothesis);
    const Hypothesis first = now.hypothesis;
    while (left > 0) {
      std::map<double, Hypothesis> single = polished(now.hypothesis);
      if (single.empty()) break;
      std::pair<double, Hypothesis> best = *single.begin();
      auto next = best.first > 0 && least_of(by(now), 1) < identified_from ? single.begin() : single.end();
      for (std::size_t i = 0; i < paired && next != single.end(); ++i, ++next)
        if (const auto both = polished(next->second); !both.empty() && both.begin()->first < best.first)
          best = *both.begin();
      if (!(best.first < left / 2)) break;
      now = scores_.of(std::move(best.second)), left = best.first;
    }
    if (identity(first, problem()) != identity(now.hypothesis, problem()))
      now.hypothesis = described(std::move(now.hypothesis));
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
    other.options.arithmetic.launch = launch_of(*other.variant, cuts_.second->part, options);
    const RecordedPart& first = cuts_.first.part;
    if (differing_bits(scores_.prediction(other), first.recorded) == 0 &&
        mean_of(second.measured().by(second.prediction(other))) >
            mean_of(second.measured().by(second.prediction(found.hypothesis))))
      found.hypothesis = std::move(other);
  }

  void conclude(Identification& found) {
    const kda::Tensors predicted = scores_.prediction(found.hypothesis);
    found.is_as_declared = is_as_declared(found.hypothesis);
    found.differing = differing_bits(predicted, cuts_.first.part.recorded);
    for (const auto& [name, tensor] : cuts_.first.part.recorded) found.elements += tensor.size();
    double least = 1;
    found.left = 0, found.blocks = 1, found.gives_most = true;
    const auto measure = [&](const Explained& measured, const kda::Tensors& prediction) {
      const std::vector<double> robustly = measured.robustly_by(prediction);
      least = std::min(least, mean_of(robustly));
      found.left = std::max(found.left, 1 - least_of(robustly, 1));
      found.gives_most = found.gives_most && measured.given_by(prediction).is_most;
      found.blocks = std::min(found.blocks, mean_of(measured.blocks_explained_by(prediction, good_from)));
      return mean_of(measured.by(prediction));
    };
    found.explained = measure(scores_.measured(), predicted);
    if (cuts_.second) {
      const Scores second(*cuts_.second, settings_.threads, effort_);
      if (second.measured().errors() >= fewest_errors) {
        settle_launch(found, second);
        found.again = measure(second.measured(), second.prediction(found.hypothesis));
        found.not_finite += second.measured().not_finite();
      }
    }
    found.tried = effort_.tried;
    // Of few errors starts alone were tried, and few ways explain little by chance.
    const bool is_explained = found.errors >= fewest_errors_of_starts && least >= identified_from;
    found.end = found.errors < fewest_errors && found.differing > 0 && !is_explained
                    ? Identity::too_few_errors
                : is_explained || found.blocks >= settled_from ? Identity::identified
                                                               : Identity::stranger;
    if (settings_.licence) add_unlicensed(found);
    if (found.end != Identity::identified) return;
    if (settings_.starts_only) return;
    if (settings_.shares) found.shares = shares_of(found.hypothesis, cuts_.first, settings_.threads);
    if (settings_.advise) found.advice = advice_of(found.hypothesis, cuts_.first, settings_.threads);
  }

  bool is_narrow() const {
    const numeric::ComputeFormat compute = settings_.licence->compute;
    return compute == numeric::ComputeFormat::bf16 || compute == numeric::ComputeFormat::fp16;
  }
  /// Operands of narrow products err as much as roundings that are not licensed: kernels that people run may
  /// have them there.
  bool is_allowed(const Hypothesis& one) const {
    return unlicensed(one, *settings_.licence, problem()).empty() ||
           (is_narrow() && !one.preset.empty() && one.changes == 0);
  }

  /// Those that it has for itself, where they change the outputs by as much as all else errs; few errors tell
  /// nothing.
  void add_unlicensed(Identification& found) {
    const Licence& licence = *settings_.licence;
    const std::vector<std::string> list = unlicensed(found.hypothesis, licence, problem());
    found.is_licensed = is_allowed(found.hypothesis);
    if (found.end != Identity::identified || found.is_licensed || found.errors < fewest_errors) return;
    const kda::Tensors with = scores_.prediction(found.hypothesis),
                       without = scores_.prediction(licensed(found.hypothesis, licence, problem()));
    for (const auto& [name, tensor] : cuts_.first.part.recorded) {
      const double noise = rms(difference(without.at(name), cuts_.first.truth.find(name)->second)),
                   effect = rms(difference(with.at(name), without.at(name)));
      if (!(effect <= noise * (is_narrow() ? most_of_narrow : most_of_licensed))) found.unlicensed = list;
    }
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

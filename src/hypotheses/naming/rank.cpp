#include "hypotheses/naming/rank.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/threads/parallel.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::hypotheses {

namespace {

/// More candidates have to leave so much less of the squares.
constexpr double least_gain_of_more = 1.0 / 16;

Distance distance_between(const std::vector<double>& got, const std::vector<double>& wanted) {
  Distance sum;
  for (std::size_t i = 0; i < got.size(); ++i) sum.add(got[i], wanted[i]);
  return sum;
}

struct UnitError {
  double in_limits, rms_ratio, size;
};

struct Ranked {
  std::size_t candidate;
  std::vector<UnitError> left;  ///< by unit
  double explained;             ///< Cause::explained; -1 where what is right would not stay so
};

class Ranking {
 public:
  Ranking(const std::vector<Unit>& units, const Thresholds& thresholds)
      : units_(units), thresholds_(thresholds) {
    for (const Unit& unit : units)
      without_.push_back(error(unit, unit.right)), got_.push_back(size_of(unit.got)),
          right_.push_back(size_of(unit.right));
    worst_ = std::ranges::max_element(without_, {}, &UnitError::in_limits) - without_.begin();
  }

  /// The best first, of those that are as good the first.
  std::vector<Ranked> ranked(const std::vector<Candidate>& candidates, int threads) const {
    std::vector<Ranked> list(candidates.size());
    parallel_for(list.size(), threads, [&](std::size_t i, int) {
      const UnitValues answer = candidates[i].answer();
      list[i].candidate = i;
      for (std::size_t unit = 0; unit < units_.size(); ++unit)
        list[i].left.push_back(error(units_[unit], answer[unit]));
      list[i].explained = explained(list[i].left);
    });
    std::ranges::stable_sort(list, std::ranges::greater{}, &Ranked::explained);
    return list;
  }

  void name(const std::vector<Candidate>& candidates, const std::vector<Ranked>& ranked,
            Naming& naming) const {
    const std::size_t most_compared = std::clamp<std::size_t>(thresholds_.most_named, 20, 64);
    const Ranked& best = ranked.front();
    if (!is_cause(best, candidates[best.candidate])) {
      if (best.explained >= thresholds_.least_near) naming.nearest = cause(candidates, best);
      return;
    }
    naming.causes.push_back(cause(candidates, best));
    const UnitValues of_best = candidates[best.candidate].answer();
    for (std::size_t i = 1; i < std::min(ranked.size(), most_compared); ++i) {
      const Candidate& other = candidates[ranked[i].candidate];
      if (naming.causes.size() < thresholds_.most_named && is_as_good(ranked[i], best) &&
          std::ranges::find(naming.causes, other.fault, &Cause::fault) == naming.causes.end() &&
          are_alike(of_best, other.answer()))
        naming.causes.push_back(cause(candidates, ranked[i]));
    }
    // What a rounding does no less is a rounding: nobody overlooks that a whole factor is missing.
    std::stable_partition(naming.causes.begin(), naming.causes.end(),
                          [](const Cause& cause) { return is_rounding(cause.fault); });
  }

 private:
  static UnitError error(const Unit& unit, const std::vector<double>& answer) {
    const Distance left = distance_between(unit.got, answer);
    const double ratio = left.ratio();
    return {ratio > 0 ? ratio / unit.limit : 0, ratio, left.size()};
  }

  /// A unit that errs as right ones do has nothing to explain, but has to stay so; and what is next to
  /// nothing explains nobody's output by being small as well.
  double explained(const std::vector<UnitError>& left) const {
    constexpr double most_left = 0.25, most_of_small = 0.05;  // of the output
    const double largest = std::ranges::max(without_, {}, &UnitError::rms_ratio).rms_ratio;
    double sum = 0, count = 0;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const UnitError &before = without_[unit], &after = left[unit];
      if (before.in_limits > 1 && before.rms_ratio >= thresholds_.much_less * largest) {
        // Where zeros are predicted nothing is left but the errors of what they stand for.
        const bool is_near = after.in_limits <= 1 || after.size <= most_left * got_[unit] ||
                             after.size <= units_[unit].limit * right_[unit];
        sum += is_near ? share(before, after) : std::min(share(before, after), most_of_small), count += 1;
      } else if (units_[unit].has_to_stay &&
                 after.in_limits > std::max(thresholds_.still_right, 2 * before.in_limits)) {
        return -1;
      }
    }
    return count > 0 ? sum / count : 0;
  }
  static double share(const UnitError& before, const UnitError& after) {
    if (!std::isfinite(before.size)) return after.in_limits <= 1 ? 1 : 0;
    const double left = after.size / before.size;
    return left < 1 ? 1 - left * left : std::max(-1.0, 1 - left);
  }

  bool has_to_explain(std::size_t unit) const { return without_[unit].in_limits > 1; }
  bool is_left(const Ranked& one, std::size_t unit) const {
    constexpr double most_limits = 4;
    return has_to_explain(unit) && one.left[unit].in_limits > most_limits;
  }

  /// What leaves more than a right output errs by is a relative of what is wrong, but where it explains
  /// nearly all of many elements; a rounding depends on each one before it.
  bool is_cause(const Ranked& one, const Candidate& candidate) const {
    constexpr double nearly_all = 0.999;
    constexpr std::size_t many = 64;
    std::size_t elements = 0;
    bool is_left_somewhere = false;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (has_to_explain(unit)) elements += units_[unit].got.size();
      is_left_somewhere = is_left_somewhere || is_left(one, unit);
    }
    if (one.explained < thresholds_.least_explained || elements < thresholds_.least_elements) return false;
    return !is_left_somewhere || is_rounding(candidate.fault) ||
           (one.explained >= nearly_all && elements >= many);
  }

  bool is_as_good(const Ranked& one, const Ranked& best) const {
    constexpr double hardly = 1e-5;
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      if (!(one.left[unit].size <=
            thresholds_.times_left * best.left[unit].size + hardly * without_[unit].size))
        return false;
    return one.explained >= std::max(thresholds_.least_explained, best.explained - thresholds_.hardly_less);
  }

  /// By what they change of the right answer: at this cosine no output of such a size tells them apart.
  bool are_alike(const UnitValues& a, const UnitValues& b) const {
    constexpr double alike = 0.99;
    double aa = 0, bb = 0, ab = 0;
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      for (std::size_t i = 0; i < a[unit].size(); ++i) {
        const double right = units_[unit].right[i], weight = units_[unit].weight;
        const double x = (a[unit][i] - right) * weight, y = (b[unit][i] - right) * weight;
        aa += x * x, bb += y * y, ab += x * y;
      }
    return std::isfinite(aa + bb) && aa > 0 && bb > 0 && ab >= alike * std::sqrt(aa * bb);
  }

  Cause cause(const std::vector<Candidate>& candidates, const Ranked& one) const {
    Cause cause{
        candidates[one.candidate].fault, candidates[one.candidate].meaning, one.explained,
        units_[worst_].tensor,           without_[worst_].rms_ratio,        one.left[worst_].rms_ratio};
    for (std::size_t unit = 0; unit < units_.size(); ++unit)
      if (is_left(one, unit)) cause.left_in = units_[unit].tensor;
    return cause;
  }

  const std::vector<Unit>& units_;
  const Thresholds& thresholds_;
  std::vector<UnitError> without_{};     ///< a fault, by unit
  std::vector<double> got_{}, right_{};  ///< sizes, likewise
  std::ptrdiff_t worst_ = 0;
};

}  // namespace

void Distance::add(double got, double wanted) {
  if (std::isfinite(got) && std::isfinite(wanted))
    difference.add_square(got - wanted), expected.add_square(wanted);
  else if (!(got == wanted))
    difference.add_square(HUGE_VAL);
}
double Distance::ratio() const {
  return std::isfinite(size()) ? relative_size(difference, expected) : HUGE_VAL;
}
double in_range_of(numeric::DType dtype, double value) {
  double rounded = value;
  numeric::visit_storage(
      dtype, [&](auto tag) { rounded = numeric::widen(numeric::round_to<decltype(tag)>(value)); });
  return std::isfinite(rounded) ? value : rounded;
}
bool is_right(const Unit& unit) { return distance_between(unit.got, unit.right).ratio() <= unit.limit; }
double size_of(const std::vector<double>& values) { return distance_between(values, values).expected.root(); }

std::vector<std::size_t> best_first(const std::vector<Unit>& units, const std::vector<Candidate>& candidates,
                                    const Thresholds& thresholds, int threads) {
  std::vector<std::size_t> order;
  for (const Ranked& one : Ranking(units, thresholds).ranked(candidates, threads))
    order.push_back(one.candidate);
  return order;
}

double squares_left(const std::vector<Unit>& units, const UnitValues& answer) {
  double sum = 0;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const double allowed = units[unit].limit * size_of(units[unit].right);
    for (std::size_t i = 0; allowed > 0 && i < answer[unit].size(); ++i) {
      const double error = (units[unit].got[i] - answer[unit][i]) / allowed;
      if (std::isfinite(error)) sum += error * error;
    }
  }
  return sum;
}

double fitted_factor(const std::vector<Unit>& units, const std::function<UnitValues(double)>& answer) {
  constexpr double starts[] = {1e-5, 1e-3, 0.125, 0.5, 0.8, 1.25, 2, 8}, least = 1e-6, most = 1e4,
                   difference = 1e-5;
  constexpr int steps = 8;
  double factor = 1, left = HUGE_VAL;
  for (const double start : starts)
    if (const double of_start = squares_left(units, answer(start)); of_start < left)
      factor = start, left = of_start;
  for (int step = 0; step < steps; ++step) {
    const UnitValues here = answer(factor), beside = answer(factor * (1 + difference));
    double along = 0, slope = 0;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const double allowed = units[unit].limit * size_of(units[unit].right);
      for (std::size_t i = 0; allowed > 0 && i < here[unit].size(); ++i) {
        const double error = (units[unit].got[i] - here[unit][i]) / allowed,
                     change = (beside[unit][i] - here[unit][i]) / (factor * difference * allowed);
        if (std::isfinite(error) && std::isfinite(change)) along += error * change, slope += change * change;
      }
    }
    const double next = std::clamp(factor + along / slope, factor / 2, factor * 2);
    if (!(slope > 0) || next < least || next > most) return factor;
    const double of_next = squares_left(units, answer(next));
    if (!(of_next < left)) return factor;
    factor = next, left = of_next;
  }
  return factor;
}

void rank(const std::vector<Unit>& units, const std::vector<Candidate>& candidates,
          const Thresholds& thresholds, int threads, Naming& naming, const MoreCandidates& more) {
  if (candidates.empty() || std::ranges::all_of(units, is_right)) return;
  const Ranking ranking(units, thresholds);
  const std::vector<Ranked> best = ranking.ranked(candidates, threads);
  const double explained = best.front().explained;
  const auto is_in_limits = [](const UnitError& left) { return left.in_limits <= 1; };
  if (more && !std::ranges::all_of(best.front().left, is_in_limits)) {
    std::vector<std::size_t> order;
    for (const Ranked& one : best)
      if (explained >= thresholds.least_near) order.push_back(one.candidate);
    const std::vector<Candidate> others = more(order);
    const std::vector<Ranked> best_of_more = ranking.ranked(others, threads);
    if (!best_of_more.empty() &&
        best_of_more.front().explained >= 1 - least_gain_of_more * (1 - std::max(explained, 0.0)))
      return ranking.name(others, best_of_more, naming);
  }
  ranking.name(candidates, best, naming);
}

}  // namespace kda_check::hypotheses

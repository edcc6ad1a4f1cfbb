#include "explain/probe/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/threads/parallel.hpp"
#include "numeric/product_sum.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::explain {

namespace {

using kda::Problem;
using tensor::Tensor;

constexpr std::size_t most_lanes = 16, most_heads = 2;
constexpr std::size_t window_tokens = 256;     // looked at, at least, where there are as many
constexpr std::size_t from_start = 1024;       // failures up to here are looked at from the first token
constexpr std::size_t tokens_before = 64;      // later ones from so many tokens before
constexpr std::size_t whole_for_state = 2048;  // longest sequence looked at whole for its final state alone
constexpr double least_gain = 4, lead = 4;
constexpr double few_lanes_slack = 4;  // in units of the limit, which is for whole tensors
constexpr std::size_t most_pairs = 3;  // named, where an answer cannot tell them apart

/// A way to read the problem, to be held against the answer.
struct Candidate {
  std::string name;  ///< empty: the right reading
  Interpretation reading;
  std::string meaning;
};

/// How far the answer is from a candidate's.
struct Agreement {
  double o = 0, final_state = 0;  ///< rms_ratio
};

/// Sums of squares; a class that differs makes the ratio infinite.
struct Distance {
  numeric::ProductSum difference2, expected2;

  void add(const Distance& other) {
    difference2.add(other.difference2);
    expected2.add(other.expected2);
  }
  void add(double got, double expected, numeric::DType dtype) {
    double rounded = expected;
    numeric::visit_storage(
        dtype, [&](auto tag) { rounded = numeric::widen(numeric::round_to<decltype(tag)>(expected)); });
    if (!std::isfinite(rounded) || !std::isfinite(got)) {
      if (!(rounded == got)) difference2.add_square(HUGE_VAL);
      return;
    }
    difference2.add_square(got - expected);
    expected2.add_square(expected);
  }
  double ratio() const {
    return std::isfinite(difference2.root()) ? relative_size(difference2, expected2) : HUGE_VAL;
  }
};

/// Such a mistake shows from the first token on.
bool misreads_initial_state(const Interpretation& reading) {
  return !reading.initial_state || reading.initial_state_transposed;
}

class Probe {
 public:
  Probe(const Problem& problem, const FailedAnswer& answer, const FailurePlace& place, int threads)
      : problem_(problem), answer_(answer), d_(problem.dimensions()), threads_(threads) {
    finding_.sequence = problem.sequences().at(place.sequence);
    finding_.lanes = std::min(d_.V, most_lanes);
    finding_.first_lane = std::min(place.lane, d_.V - finding_.lanes);
    for (std::size_t i = 0; i < std::min(d_.HV, most_heads); ++i)
      finding_.heads.push_back((place.head + i) % d_.HV);
  }

  ProbeFinding run() {
    choose_tokens();
    if (finding_.begin == finding_.end) return std::move(finding_);
    std::vector<Candidate> candidates;
    candidates.push_back({{}, Interpretation(problem_), {}});
    for (const Convention& convention : conventions()) add_candidates(convention, candidates);
    if (!judge(candidates, agreements(candidates))) try_pairs();
    return std::move(finding_);
  }

 private:
  double got_o(std::size_t t, std::size_t head, std::size_t lane) const {
    return answer_.o->value(((finding_.sequence.batch * d_.T + t) * d_.HV + head) * d_.V +
                            finding_.first_lane + lane);
  }
  Excerpt excerpt(std::size_t head, std::size_t begin, std::size_t end) const {
    return {finding_.sequence, begin, end, head, finding_.first_lane, finding_.lanes, {}};
  }
  bool sees_final_state() const {
    return answer_.final_state != nullptr && finding_.end == finding_.sequence.end;
  }

  // --- which tokens

  /// The first token of these heads and lanes whose row of o deviates from the right answer; the end without
  /// one. `limit` is where tokens that are not finite begin.
  std::size_t first_deviation(std::size_t limit) const {
    std::vector<Distance> rows(limit - finding_.sequence.begin);
    for (const std::size_t head : finding_.heads) {
      const ExcerptAnswer right =
          answer_of(problem_, Interpretation(problem_), excerpt(head, finding_.sequence.begin, limit));
      for (std::size_t row = 0; row < rows.size(); ++row)
        for (std::size_t lane = 0; lane < finding_.lanes; ++lane)
          rows[row].add(got_o(finding_.sequence.begin + row, head, lane),
                        right.o[row * finding_.lanes + lane], answer_.o->dtype());
    }
    // A row that cancels is judged by the size of the rows before it.
    double largest = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      largest = std::max(largest, rows[row].expected2.root());
      const double allowed = least_gain * answer_.o_limit;
      if (rows[row].difference2.root() > allowed * largest) return finding_.sequence.begin + row;
    }
    return limit;
  }

  std::size_t first_nonfinite() const {
    for (std::size_t t = finding_.sequence.begin; t < finding_.sequence.end; ++t)
      for (const std::size_t head : finding_.heads)
        for (std::size_t lane = 0; lane < finding_.lanes; ++lane)
          if (!std::isfinite(got_o(t, head, lane))) return t;
    return finding_.sequence.end;
  }

  /// From the first token where that is affordable. Else from shortly before the deviation, with the state of
  /// the right reading: up to there the answer was right.
  void choose_tokens() {
    const kda::Sequence& s = finding_.sequence;
    finding_.begin = s.begin, finding_.end = s.end;
    deviation_ = s.begin;
    if (answer_.o == nullptr) {
      if (s.length() > whole_for_state) finding_.begin = s.end - window_tokens;
    } else {
      const std::size_t limit = first_nonfinite();
      deviation_ = first_deviation(limit);
      if (deviation_ - s.begin > from_start)
        finding_.begin = deviation_ == s.end ? s.end - window_tokens : deviation_ - tokens_before;
      const std::size_t wanted =
          std::max(finding_.begin + window_tokens, std::min(s.end, deviation_ + tokens_before));
      finding_.end = std::min(limit, wanted);
    }
    starts_.resize(finding_.heads.size());
    if (finding_.begin > s.begin)
      for (std::size_t i = 0; i < starts_.size(); ++i)
        starts_[i] =
            answer_of(problem_, Interpretation(problem_), excerpt(finding_.heads[i], s.begin, finding_.begin))
                .state;
  }

  // --- candidates

  void add_candidates(const Convention& convention, std::vector<Candidate>& list) {
    if (!convention.applies(problem_)) return;
    ++finding_.conventions;
    // A lost update need not show in the row of its own token.
    constexpr std::size_t tokens_tried = 3;
    for (std::size_t back = 0; back < (convention.of_one_token ? tokens_tried : 1); ++back) {
      if (deviation_ < finding_.begin + back) break;
      const std::size_t token = deviation_ - back;
      Candidate candidate{std::string(convention.name), Interpretation(problem_),
                          std::string(convention.meaning)};
      convention.misread(candidate.reading, token);
      if (finding_.begin > finding_.sequence.begin && misreads_initial_state(candidate.reading)) break;
      if (convention.of_one_token) candidate.meaning += fmt::format(" (t={})", token);
      list.push_back(std::move(candidate));
    }
  }

  /// [candidate]
  std::vector<Agreement> agreements(const std::vector<Candidate>& candidates) const {
    struct Pair {
      Distance o, final_state;
    };
    const std::size_t heads = finding_.heads.size();
    std::vector<Pair> pairs(candidates.size() * heads);
    parallel_for(pairs.size(), threads_, [&](std::size_t item, int) {
      const Interpretation& reading = candidates[item / heads].reading;
      Excerpt part = excerpt(finding_.heads[item % heads], finding_.begin, finding_.end);
      part.start = starts_[item % heads];
      const ExcerptAnswer expected = answer_of(problem_, reading, part);
      if (answer_.o != nullptr) pairs[item].o = distance_of_o(part, expected);
      if (sees_final_state()) pairs[item].final_state = distance_of_state(part, reading, expected);
    });
    std::vector<Agreement> list;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      Pair sum;
      for (std::size_t head = 0; head < heads; ++head) {
        const Pair& part = pairs[i * heads + head];
        sum.o.add(part.o);
        sum.final_state.add(part.final_state);
      }
      list.push_back({sum.o.ratio(), sum.final_state.ratio()});
    }
    return list;
  }

  Distance distance_of_o(const Excerpt& part, const ExcerptAnswer& expected) const {
    Distance distance;
    for (std::size_t t = part.begin; t < part.end; ++t)
      for (std::size_t lane = 0; lane < part.lanes; ++lane)
        distance.add(got_o(t, part.head, lane), expected.o[(t - part.begin) * part.lanes + lane],
                     answer_.o->dtype());
    return distance;
  }

  Distance distance_of_state(const Excerpt& part, const Interpretation& reading,
                             const ExcerptAnswer& expected) const {
    const bool v_first = problem_.options.state_v_first != reading.final_state_transposed;
    Distance distance;
    for (std::size_t k = 0; k < d_.K; ++k)
      for (std::size_t lane = 0; lane < part.lanes; ++lane)
        distance.add(answer_.final_state->value(state_element(d_, v_first, part.sequence.index, part.head, k,
                                                              part.first_lane + lane)),
                     expected.state[k * part.lanes + lane], answer_.final_state->dtype());
    return distance;
  }

  // --- verdict

  /// The worse tensor, in units of its limit.
  double score(const Agreement& agreement) const {
    double worst = 0;
    if (answer_.o != nullptr) worst = agreement.o / answer_.o_limit;
    if (sees_final_state()) worst = std::max(worst, agreement.final_state / answer_.final_state_limit);
    return worst;
  }

  Explanation explanation(const Candidate& candidate, const Agreement& before, const Agreement& after) const {
    const bool by_state =
        sees_final_state() &&
        (answer_.o == nullptr || before.final_state / answer_.final_state_limit > before.o / answer_.o_limit);
    return {candidate.name, candidate.meaning, by_state ? "final_state" : "o",
            by_state ? before.final_state : before.o, by_state ? after.final_state : after.o};
  }

  /// Puts down who explains the answer, the best first, `most` at most; false where nobody does.
  bool judge(const std::vector<Candidate>& candidates, const std::vector<Agreement>& agreements,
             std::size_t most = ~std::size_t{0}) {
    const double before = score(agreements[0]);
    std::vector<std::size_t> order;
    std::vector<double> scores;
    for (const Agreement& agreement : agreements) scores.push_back(score(agreement));
    for (std::size_t i = 1; i < candidates.size(); ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
    if (order.empty() || !(scores[order.front()] < before)) return false;
    const double best = scores[order.front()];
    const auto explained = [&](std::size_t i) {
      return explanation(candidates[i], agreements[0], agreements[i]);
    };
    if (best > 1 || best * least_gain > before) {
      if (!finding_.nearest) finding_.nearest = explained(order.front());
      return false;
    }
    finding_.nearest.reset();
    // As good as the best, up to rounding noise: this answer does not tell them apart.
    for (const std::size_t i : order)
      if (scores[i] <= std::min(1.0, best * lead) && finding_.matches.size() < most)
        finding_.matches.push_back(explained(i));
    return true;
  }

  /// Two mistakes at once. All pairs are tried on few lanes of one head, and what is left on as much as
  /// single ones.
  void try_pairs() {
    std::vector<Candidate> pairs{{{}, Interpretation(problem_), {}}};
    const std::span<const Convention> list = conventions();
    const auto is_tried = [&](const Convention& convention) {
      return !convention.of_one_token && convention.applies(problem_);
    };
    for (std::size_t a = 0; a < list.size(); ++a)
      for (std::size_t b = a + 1; b < list.size(); ++b) {
        if (!is_tried(list[a]) || !is_tried(list[b])) continue;
        Candidate pair{fmt::format("{} and {}", list[a].name, list[b].name), Interpretation(problem_),
                       fmt::format("{}, and {}", list[a].meaning, list[b].meaning)};
        list[a].misread(pair.reading, deviation_);
        list[b].misread(pair.reading, deviation_);
        if (finding_.begin > finding_.sequence.begin && misreads_initial_state(pair.reading)) continue;
        pairs.push_back(std::move(pair));
      }
    const ProbeFinding whole = finding_;
    finding_.heads.resize(1);
    finding_.lanes = std::min<std::size_t>(finding_.lanes, 2);
    const std::vector<std::vector<double>> starts = starts_;
    cut_starts(whole.lanes);
    const std::vector<Agreement> few = agreements(pairs);
    finding_ = whole, starts_ = starts;
    std::vector<Candidate> left{pairs.front()};
    for (std::size_t i = 1; i < pairs.size(); ++i)
      if (score(few[i]) <= few_lanes_slack) left.push_back(std::move(pairs[i]));
    if (left.size() > 1) judge(left, agreements(left), most_pairs);
  }

  /// The states before `begin` of the lanes that are left of `lanes`.
  void cut_starts(std::size_t lanes) {
    for (std::vector<double>& start : starts_) {
      std::vector<double> cut;
      for (std::size_t k = 0; k * lanes < start.size(); ++k)
        cut.insert(cut.end(), start.begin() + static_cast<std::ptrdiff_t>(k * lanes),
                   start.begin() + static_cast<std::ptrdiff_t>(k * lanes + finding_.lanes));
      start = std::move(cut);
    }
  }

  const Problem& problem_;
  const FailedAnswer& answer_;
  const kda::Dimensions d_;
  const int threads_;
  ProbeFinding finding_;
  std::size_t deviation_ = 0;                ///< first token that deviates
  std::vector<std::vector<double>> starts_;  ///< [head]: the state before `begin`; empty at the first token
};

}  // namespace

ProbeFinding probe(const Problem& problem, const FailedAnswer& answer, const FailurePlace& place,
                   int threads) {
  return Probe(problem, answer, place, threads).run();
}

}  // namespace kda_check::explain

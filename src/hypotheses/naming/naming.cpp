#include "hypotheses/naming/naming.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/threads/parallel.hpp"
#include "numeric/product_sum.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;
using tensor::Tensor;

constexpr std::size_t most_heads = 2;
constexpr std::size_t window_tokens = 256;     // looked at, at least, where there are as many
constexpr std::size_t tokens_before = 64;      // of later failures: from so many tokens before
constexpr std::size_t whole_for_state = 2048;  // longest sequence looked at whole for its final state alone
constexpr double least_explained = 0.8;        // by a cause
constexpr double least_near = 0.05;            // by the nearest fault
/// A second fault has to leave so much less of the squares.
constexpr double least_gain_of_two = 1.0 / 16;
constexpr std::size_t firsts_of_two = 4, seconds_of_large = 16;
/// Cosine of two predicted errors that no output of this size tells apart.
constexpr double alike = 0.99;

/// A way to read the problem, to be compared with the output.
struct Candidate {
  std::string name;  ///< empty: the right reading
  Interpretation reading;
  std::string meaning;
  std::size_t fault = 0, at = 0;
};

enum Tensors : std::size_t { of_o, of_state, tensors };
/// Of one tensor in one head.
struct Error {
  double rms_ratio = 0;
  double size = 0;  ///< root of the sum of squares
};
/// [head * tensors + tensor]
using Errors = std::vector<Error>;

struct Tried {
  Candidate candidate;
  Errors left = {};
  double explained = 0;
};

/// Sums of squares, in one tensor; a class that differs makes the ratio infinite.
struct Distance {
  numeric::ProductSum difference2, expected2;

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
bool shows_at_start(const Interpretation& reading) {
  return !reading.initial_state || reading.initial_state_transposed || reading.initial_state_by_head ||
         reading.initial_state_of_first || reading.goes_on;
}

class Search {
 public:
  Search(const Problem& problem, const FailedOutput& output, const FailurePlace& place, int threads,
         const NamingEffort& effort)
      : problem_(problem), output_(output), d_(problem.dimensions()), threads_(threads), effort_(effort) {
    found_.sequence = problem.sequences().at(place.sequence);
    for (std::size_t i = 0; i < std::min(d_.HV, most_heads); ++i)
      found_.heads.push_back((place.head + i) % d_.HV);
  }

  Naming run() {
    choose_tokens();
    if (found_.begin == found_.end) return std::move(found_);
    right_ = errors_of({{{}, Interpretation(problem_), {}}}).front();
    if (is_in_limits(right_)) return std::move(found_);
    leave_out_right_heads();
    std::vector<Candidate> list;
    for (std::size_t i = 0; i < faults().size(); ++i) add_candidates(i, list);
    std::vector<Tried> best = tried(list);
    if (best.empty() || best.front().explained < least_near) return std::move(found_);
    if (effort_.two_faults && !is_in_limits(best.front().left)) take_two(best);
    conclude(best);
    return std::move(found_);
  }

 private:
  double got_o(std::size_t t, std::size_t head, std::size_t v) const {
    return output_.o->value(((found_.sequence.batch * d_.T + t) * d_.HV + head) * d_.V + v);
  }
  bool sees_final_state() const {
    return output_.final_state != nullptr && found_.end == found_.sequence.end;
  }
  bool sees(std::size_t tensor) const { return tensor == of_o ? output_.o != nullptr : sees_final_state(); }
  double limit_of(std::size_t tensor) const {
    return tensor == of_o ? output_.o_limit : output_.final_state_limit;
  }

  // --- which tokens

  /// The first token of these heads whose row of o deviates from the right answer; the end without one.
  /// `limit` is where tokens that are not finite begin.
  std::size_t first_deviation(std::size_t limit) const {
    constexpr double clearly = 4;
    std::vector<Distance> rows(limit - found_.sequence.begin);
    for (const std::size_t head : found_.heads) {
      const ExcerptAnswer right = answer_of(problem_, Interpretation(problem_),
                                            {found_.sequence, found_.sequence.begin, limit, head});
      for (std::size_t row = 0; row < rows.size(); ++row)
        for (std::size_t v = 0; v < d_.V; ++v)
          rows[row].add(got_o(found_.sequence.begin + row, head, v), right.o[row * d_.V + v],
                        output_.o->dtype());
    }
    // A row that cancels is judged by the size of the rows before it.
    double largest = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      largest = std::max(largest, rows[row].expected2.root());
      if (rows[row].difference2.root() > clearly * output_.o_limit * largest)
        return found_.sequence.begin + row;
    }
    return limit;
  }

  std::size_t first_nonfinite() const {
    for (std::size_t t = found_.sequence.begin; t < found_.sequence.end; ++t)
      for (const std::size_t head : found_.heads)
        for (std::size_t v = 0; v < d_.V; ++v)
          if (!std::isfinite(got_o(t, head, v))) return t;
    return found_.sequence.end;
  }

  /// From the first token where that is affordable. Else from shortly before the deviation, with the state of
  /// the right reading: up to there the output was right.
  void choose_tokens() {
    const kda::Sequence& s = found_.sequence;
    found_.begin = s.begin, found_.end = s.end;
    deviation_ = s.begin;
    if (output_.o == nullptr) {
      if (s.length() > whole_for_state) found_.begin = s.end - window_tokens;
    } else {
      const std::size_t limit = first_nonfinite();
      deviation_ = first_deviation(limit);
      if (deviation_ - s.begin > effort_.most_tokens)
        found_.begin = deviation_ == s.end ? s.end - window_tokens : deviation_ - tokens_before;
      found_.begin -= (found_.begin - s.begin) % tokens_before;  // where chunks begin
      const std::size_t wanted =
          std::max(found_.begin + window_tokens, std::min(s.end, deviation_ + tokens_before));
      found_.end = std::min(limit, wanted);
    }
    starts_.resize(found_.heads.size());
    if (found_.begin > s.begin)
      for (std::size_t i = 0; i < starts_.size(); ++i)
        starts_[i] =
            answer_of(problem_, Interpretation(problem_), {s, s.begin, found_.begin, found_.heads[i]}).state;
  }

  /// A fault of one head is looked for in that one.
  void leave_out_right_heads() {
    for (std::size_t head = found_.heads.size(); head-- > 0 && found_.heads.size() > 1;)
      if (in_limits(right_, head * tensors + of_o) <= 1 &&
          in_limits(right_, head * tensors + of_state) <= 1) {
        const auto at = static_cast<std::ptrdiff_t>(head);
        found_.heads.erase(found_.heads.begin() + at), starts_.erase(starts_.begin() + at);
        right_.erase(right_.begin() + at * std::ptrdiff_t{tensors},
                     right_.begin() + (at + 1) * std::ptrdiff_t{tensors});
      }
  }

  // --- candidates

  void add_candidates(std::size_t index, std::vector<Candidate>& list) {
    const Fault& fault = faults()[index];
    if (!fault.applies(problem_)) return;
    ++found_.tried;
    for (const std::size_t at : places_of(fault)) {
      Candidate candidate{std::string(fault.name), Interpretation(problem_), std::string(fault.meaning),
                          index, at};
      fault.change(candidate.reading, at);
      if (found_.begin > found_.sequence.begin && shows_at_start(candidate.reading)) return;
      if (fault.at == Fault::At::token || fault.at == Fault::At::start)
        candidate.meaning += fmt::format(" (t={})", at);
      if (fault.at == Fault::At::chunk) candidate.meaning += fmt::format(" (chunks of {})", at);
      if (fault.at == Fault::At::block)
        candidate.meaning += fmt::format(" (block {0},{1}: L({0},{2}) A({2},{1}))", inverse_products[at].row,
                                         inverse_products[at].column, inverse_products[at].m);
      list.push_back(std::move(candidate));
    }
  }

  std::vector<std::size_t> places_of(const Fault& fault) const {
    std::vector<std::size_t> places;
    const auto add = [&](std::size_t place) {
      if (std::ranges::find(places, place) == places.end()) places.push_back(place);
    };
    switch (fault.at) {
      case Fault::At::everywhere:
        return {0};
      case Fault::At::token:  // need not show in its own row
        for (std::size_t back = 0; back < 3 && deviation_ >= found_.begin + back; ++back)
          add(deviation_ - back);
        return places;
      case Fault::At::start:  // that of all is another fault; the first rows may hardly differ
        for (const std::size_t multiple : {1, 16, 64})
          if (const std::size_t place = deviation_ - (deviation_ - found_.sequence.begin) % multiple;
              place > found_.begin && place < found_.end)
            add(place);
        return places;
      case Fault::At::block:
        for (std::size_t i = 0; i < std::size(inverse_products); ++i) places.push_back(i);
        return places;
      default:
        for (const std::size_t rows : {static_cast<std::size_t>(problem_.options.chunk_size), std::size_t{64},
                                       std::size_t{32}, std::size_t{16}})
          add(rows);
        return places;
    }
  }

  // --- what they explain

  Excerpt excerpt(std::size_t head) const {
    return {found_.sequence, found_.begin, found_.end, found_.heads[head], starts_[head]};
  }
  bool v_first(const Interpretation& reading) const {
    return problem_.options.state_v_first != reading.final_state_transposed;
  }
  double got_state(const Interpretation& reading, std::size_t head, std::size_t i) const {
    return output_.final_state->value(
        state_element(d_, v_first(reading), found_.sequence.index, found_.heads[head], i / d_.V, i % d_.V));
  }

  std::array<Distance, tensors> distances(const Interpretation& reading, std::size_t head) const {
    const ExcerptAnswer expected = answer_of(problem_, reading, excerpt(head));
    std::array<Distance, tensors> list;
    for (std::size_t i = 0; sees(of_o) && i < expected.o.size(); ++i)
      list[of_o].add(got_o(found_.begin + i / d_.V, found_.heads[head], i % d_.V), expected.o[i],
                     output_.o->dtype());
    for (std::size_t i = 0; sees(of_state) && i < expected.state.size(); ++i)
      list[of_state].add(got_state(reading, head, i), expected.state[i], output_.final_state->dtype());
    return list;
  }

  std::vector<Errors> errors_of(const std::vector<Candidate>& list) const {
    const std::size_t heads = found_.heads.size();
    std::vector<std::array<Distance, tensors>> parts(list.size() * heads);
    parallel_for(parts.size(), threads_, [&](std::size_t item, int) {
      parts[item] = distances(list[item / heads].reading, item % heads);
    });
    std::vector<Errors> errors(list.size());
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (const Distance& part : parts[i])
        errors[i / heads].push_back({part.ratio(), part.difference2.root()});
    return errors;
  }

  /// Of a tensor in a head, as all that is called unit.
  double in_limits(const Errors& errors, std::size_t unit) const {
    return sees(unit % tensors) ? errors[unit].rms_ratio / limit_of(unit % tensors) : 0;
  }
  std::size_t worst_unit() const {
    std::size_t worst = 0;
    for (std::size_t unit = 1; unit < right_.size(); ++unit)
      if (in_limits(right_, unit) > in_limits(right_, worst)) worst = unit;
    return worst;
  }

  /// Cause::explained. A tensor that errs as right ones do has nothing to explain, but has to stay so; and
  /// what is next to nothing explains nobody's output by being small as well.
  double explained(const Errors& after) const {
    constexpr double much_less = 1.0 / 8, most_left = 0.5;
    double sum = 0, count = 0;
    double worst = 0;
    for (std::size_t unit = 0; unit < right_.size(); ++unit)
      if (sees(unit % tensors)) worst = std::max(worst, right_[unit].rms_ratio);
    for (std::size_t unit = 0; unit < right_.size(); ++unit) {
      if (!sees(unit % tensors)) continue;
      const double before = in_limits(right_, unit), left = in_limits(after, unit);
      if (before > 1 && right_[unit].rms_ratio >= much_less * worst) {
        const double share = share_of(unit, after);
        const bool is_near = left <= 1 || after[unit].rms_ratio <= most_left;
        sum += is_near ? share : std::min(share, least_near), count += 1;
      } else if (left > std::max(1.0, 2 * before)) {
        return -1;
      }
    }
    return count > 0 ? sum / count : 0;
  }
  double share_of(std::size_t unit, const Errors& after) const {
    if (!std::isfinite(right_[unit].size)) return in_limits(after, unit) <= 1 ? 1 : 0;
    const double left = after[unit].size / right_[unit].size;
    return left < 1 ? 1 - left * left : std::max(-1.0, 1 - left);
  }
  bool is_in_limits(const Errors& errors) const {
    for (std::size_t unit = 0; unit < errors.size(); ++unit)
      if (in_limits(errors, unit) > 1) return false;
    return true;
  }

  /// The best first.
  std::vector<Tried> tried(const std::vector<Candidate>& list) const {
    std::vector<Tried> all;
    const std::vector<Errors> errors = errors_of(list);
    for (std::size_t i = 0; i < list.size(); ++i) all.push_back({list[i], errors[i], explained(errors[i])});
    std::ranges::stable_sort(all, std::ranges::greater{}, &Tried::explained);
    return all;
  }

  /// Two mistakes at once: what is best alone, and each other besides.
  void take_two(std::vector<Tried>& best) const {
    // Of large parts with those alone that explain most themselves.
    const kda::Sequence& s = found_.sequence;
    const bool is_large =
        static_cast<double>(found_.end - found_.begin) * static_cast<double>(d_.K * d_.V) > 1 << 22;
    std::vector<Candidate> pairs;
    for (std::size_t i = 0; i < std::min(best.size(), firsts_of_two); ++i)
      for (std::size_t j = 0; j < (is_large ? std::min(seconds_of_large, best.size()) : best.size()); ++j) {
        const Candidate& other = best[j].candidate;
        if (best[i].candidate.fault == other.fault || (j < firsts_of_two && j < i)) continue;
        if (other.reading.goes_on && s.begin > window_tokens) continue;  // its past takes long
        const bool in_order = best[i].candidate.fault < other.fault;
        const Candidate &a = in_order ? best[i].candidate : other, &b = in_order ? other : best[i].candidate;
        Candidate pair{fmt::format("{} and {}", a.name, b.name), Interpretation(problem_),
                       fmt::format("{}, and {}", a.meaning, b.meaning)};
        faults()[a.fault].change(pair.reading, a.at), faults()[b.fault].change(pair.reading, b.at);
        pairs.push_back(std::move(pair));
      }
    std::vector<Tried> with_two = tried(pairs);
    const double enough = 1 - least_gain_of_two * (1 - best.front().explained);
    if (!with_two.empty() && with_two.front().explained >= enough) best = std::move(with_two);
  }

  // --- what is said of it

  Cause cause(const Tried& one) const {
    const std::size_t unit = worst_unit();
    return {one.candidate.name,     one.candidate.meaning,
            one.explained,          unit % tensors == of_o ? "o" : "final_state",
            right_[unit].rms_ratio, one.left[unit].rms_ratio};
  }

  /// What it changes of the answers, in units of the limits.
  std::vector<double> effect_of(const Interpretation& reading) const {
    std::vector<double> effect;
    for (std::size_t head = 0; head < found_.heads.size(); ++head) {
      const ExcerptAnswer with = answer_of(problem_, reading, excerpt(head)),
                          without = answer_of(problem_, Interpretation(problem_), excerpt(head));
      for (std::size_t i = 0; sees(of_o) && i < with.o.size(); ++i)
        effect.push_back((with.o[i] - without.o[i]) / output_.o_limit);
      for (std::size_t i = 0; sees(of_state) && i < with.state.size(); ++i) {
        const std::size_t other =
            reading.final_state_transposed && d_.K == d_.V ? i % d_.V * d_.V + i / d_.V : i;
        effect.push_back((with.state[other] - without.state[i]) / output_.final_state_limit);
      }
    }
    return effect;
  }
  static bool are_alike(const std::vector<double>& a, const std::vector<double>& b) {
    double aa = 0, bb = 0, ab = 0;
    for (std::size_t i = 0; i < a.size(); ++i) aa += a[i] * a[i], bb += b[i] * b[i], ab += a[i] * b[i];
    return std::isfinite(aa + bb) && aa > 0 && bb > 0 && ab >= alike * std::sqrt(aa * bb);
  }

  /// Whether it leaves hardly more than the best does.
  bool leaves_as_little(const Tried& one, const Tried& best) const {
    constexpr double times = 4, hardly = 1e-5;
    for (std::size_t unit = 0; unit < right_.size(); ++unit)
      if (sees(unit % tensors) &&
          !(one.left[unit].size <= times * best.left[unit].size + hardly * right_[unit].size))
        return false;
    return one.explained >= least_explained;
  }

  void conclude(const std::vector<Tried>& tried) {
    constexpr std::size_t most_named = 3, most_compared = 20;
    const Tried& best = tried.front();
    if (best.explained < least_explained) {
      found_.nearest = cause(best);
      return;
    }
    found_.causes.push_back(cause(best));
    const std::vector<double> effect = effect_of(best.candidate.reading);
    for (std::size_t i = 1; i < std::min(tried.size(), most_compared); ++i) {
      const Tried& one = tried[i];
      const bool is_new = std::ranges::none_of(
          found_.causes, [&](const Cause& known) { return known.fault == one.candidate.name; });
      if (is_new && found_.causes.size() < most_named && leaves_as_little(one, best) &&
          are_alike(effect, effect_of(one.candidate.reading)))
        found_.causes.push_back(cause(one));
    }
  }

  const Problem& problem_;
  const FailedOutput& output_;
  const kda::Dimensions d_;
  const int threads_;
  const NamingEffort effort_;
  Naming found_;
  Errors right_;
  std::size_t deviation_ = 0;                ///< first token that deviates
  std::vector<std::vector<double>> starts_;  ///< [head]: the state before `begin`; empty at the first token
};

}  // namespace

Naming name_fault(const Problem& problem, const FailedOutput& output, const FailurePlace& place, int threads,
                  const NamingEffort& effort) {
  return Search(problem, output, place, threads, effort).run();
}

}  // namespace kda_check::hypotheses

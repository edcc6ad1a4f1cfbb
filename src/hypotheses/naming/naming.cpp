#include "hypotheses/naming/naming.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/threads/parallel.hpp"
#include "hypotheses/naming/conditions.hpp"
#include "hypotheses/naming/moves.hpp"
#include "hypotheses/naming/rank.hpp"
#include "hypotheses/naming/token_fit.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;
using tensor::Tensor;

constexpr std::size_t most_heads = 2;
constexpr std::size_t window_tokens = 256;     // looked at, at least, where there are as many
constexpr std::size_t tokens_before = 64;      // of later failures: from so many tokens before
constexpr std::size_t whole_for_state = 2048;  // longest sequence looked at whole for its final state alone
constexpr std::size_t most_others = 4;         // heads before and behind, that another one is looked for in
constexpr double least_hint = 0.3;             // explained by what is said to be nearest
constexpr double as_near = 1e-3;               // of two that are as near the known one is said
constexpr std::size_t firsts_of_two = 4, seconds_of_large = 16;
constexpr std::size_t most_columns = 16;  // looked at first
constexpr Thresholds thresholds{.least_explained = 0.8,
                                .least_elements = 8,
                                .least_near = 0.05,
                                .much_less = 1.0 / 8,
                                .still_right = 1,
                                .times_left = 4,
                                .most_named = 3};

/// A way to read the problem, wrong by one fault.
struct Misreading {
  std::size_t fault, at;
  Interpretation reading;
  std::string name, meaning;
  Channels channels = Channels::all;  ///< of a fault in part
};

void change(Interpretation& reading, const Misreading& by) {
  const Fault& fault = faults()[by.fault];
  fault.apply(reading, by.at);
  if (fault.in_part) reading.channels = by.channels;
}

/// Such a mistake shows from the first token on.
bool shows_at_start(const Interpretation& reading) {
  return !reading.initial_state || reading.initial_state_transposed || reading.initial_state_by_head ||
         reading.initial_sequence != nullptr || reading.joint != Joint::none ||
         reading.initial_head != nullptr || reading.initial_scaled || reading.untouched ||
         reading.final == FinalState::initial || reading.final == FinalState::initial_again ||
         reading.chunk_fault == ChunkFault::first_chunk_alone || reading.round_initial != &unchanged ||
         reading.goes_on || reading.begins_late != 0 || reading.chunk_fault == ChunkFault::state_of_stream ||
         reading.chunk_fault == ChunkFault::state_of_first ||
         reading.chunk_fault == ChunkFault::initial_state_late ||
         reading.chunk_fault == ChunkFault::sums_over_chunks;
}

/// ... and such a one behind the last.
bool shows_at_end(const Interpretation& reading) {
  return reading.final != FinalState::right || reading.final_state_transposed ||
         reading.round_final != &unchanged || reading.begins_late != 0;
}
/// It needs the chunk before.
bool looks_back(const Interpretation& reading) {
  return reading.final == FinalState::tail_decay_stale || reading.final == FinalState::stale_rows ||
         reading.chunk_fault == ChunkFault::state_of_before;
}
/// A row of o depends on what is behind it in its chunk, or on the chunk's being whole.
bool looks_ahead(const Interpretation& reading) {
  return reading.chunk_fault == ChunkFault::state_of_after ||
         reading.chunk_fault == ChunkFault::scores_unmasked ||
         reading.chunk_fault == ChunkFault::inverse_product;
}
/// A column of what it gives depends on others.
bool mixes_columns(const Interpretation& reading) {
  return reading.final_state_transposed || reading.chunk_fault == ChunkFault::carry_by_column ||
         (reading.move != nullptr && reading.move->mixes_columns);
}

class FaultSearch {
 public:
  FaultSearch(const Problem& problem, const FailedOutput& output, const FailurePlace& place, int threads,
              const NamingEffort& effort)
      : problem_(problem), output_(output), d_(problem.dimensions()), threads_(threads), effort_(effort) {
    found_.sequence = problem.sequences().at(place.sequence);
    columns_ = all_columns();
    for (std::size_t i = 0; i < std::min(d_.HV, most_heads); ++i)
      found_.heads.push_back((place.head + i) % d_.HV);
  }

  Naming run() {
    choose_tokens();
    if (found_.begin == found_.end) return std::move(found_);
    std::vector<Unit> units = compared();
    if (std::ranges::all_of(units, is_right)) return std::move(found_);
    leave_out_right_heads(units);
    if (!search() && !search_in_columns(units) && !search_in_chunks() && !search_in_moves(false) &&
        !search_in_moves(true))
      search_in_tokens();
    ask_at({problem_.sequences().size() - 1, d_.HV - 1});
    ask_at({0, 0});
    // Whose head it is, or which token's state, says less than the rule that takes it.
    const auto says_less = [](const Cause& cause) {
      return std::ranges::any_of(faults(), [&](const Fault& fault) {
        return fault.name == cause.fault && (fault.at == Fault::At::head || fault.at == Fault::At::stored);
      });
    };
    if (!std::ranges::all_of(found_.causes, says_less)) std::erase_if(found_.causes, says_less);
    // Of what cannot be told apart first a rounding, as rank has it, then what kernels get wrong more often.
    std::stable_partition(found_.causes.begin(), found_.causes.end(), [](const Cause& cause) {
      const auto row = std::ranges::find(faults(), cause.fault, &Fault::name);
      return is_rounding(cause.fault) || (row != faults().end() && !row->is_variation);
    });
    const bool is_hint = found_.causes.empty() && nearest_ && nearest_->explained >= least_hint;
    found_.nearest = is_hint ? nearest_ : std::nullopt;
    return std::move(found_);
  }

 private:
  double got_o(std::size_t t, std::size_t head, std::size_t v) const {
    return output_.o->value(((found_.sequence.batch * d_.T + t) * d_.HV + head) * d_.V + v);
  }
  bool sees_final_state() const {
    return output_.final_state != nullptr && found_.end == found_.sequence.end;
  }

  /// Whether there is a cause: chunks of the problem's size first, of others where none of those is it.
  /// Looked for in some of the columns, which have all in common, and then asked of all.
  bool search() {
    const std::vector<std::size_t> scope = columns_;
    const bool is_quick = effort_.seconds < std::numeric_limits<std::size_t>::max();
    for (const bool in_other_chunks : {false, true}) {
      if (in_other_chunks && !where_.empty()) break;
      columns_ = some_of(scope);
      const std::vector<Unit> units = compared();
      misreadings_.clear(), others_.clear(), found_.tried = 0;
      for (std::size_t i = 0; i < faults().size(); ++i) add_misreadings(i, in_other_chunks);
      const std::size_t kept = sort_by_part(misreadings_);
      rank(units,
           candidates({misreadings_.begin(), misreadings_.begin() + static_cast<std::ptrdiff_t>(kept)}),
           thresholds, threads_, found_, [&](std::vector<std::size_t> best) {
             for (std::size_t i = kept; i < misreadings_.size() && !best.empty(); ++i) best.push_back(i);
             others_ = by_fitted_factors(units);
             if (where_.empty() && !(in_other_chunks && is_quick)) {
               std::vector<Misreading> pairs = pairs_of(best);
               pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(sort_by_part(pairs)), pairs.end());
               std::ranges::move(pairs, std::back_inserter(others_));
             }
             return candidates(others_);
           });
      if (!found_.causes.empty() && columns_.size() < scope.size()) ask_of_all(scope);
      if (!found_.causes.empty()) return true;
      if (!nearest_ || (found_.nearest && found_.nearest->explained > nearest_->explained + as_near))
        nearest_ = std::exchange(found_.nearest, {});
    }
    columns_ = scope;
    return false;
  }

  void ask_of_all(const std::vector<std::size_t>& columns) {
    const std::vector<Misreading> named = of_causes();
    found_.causes.clear();
    columns_ = columns;
    rank(compared(), candidates(named), thresholds, threads_, found_);
  }
  std::vector<Misreading> of_causes() const {
    std::vector<Misreading> named;
    for (const Cause& cause : found_.causes)
      for (const std::vector<Misreading>* const list : {&misreadings_, &others_})
        for (const Misreading& one : *list)
          if (one.name == cause.fault && one.meaning + where_ == cause.meaning) named.push_back(one);
    return named;
  }
  /// Of several causes those that explain another sequence and its heads, too, if any does; where these are
  /// right, first those that leave them so.
  void ask_at(const FailurePlace& place) {
    if (found_.causes.size() < 2 || is_in_chunk() ||
        (place.sequence == found_.sequence.index && place.head == found_.heads[0]))
      return;
    FaultSearch other(problem_, output_, place, threads_, effort_);
    other.choose_tokens();
    other.where_ = where_, other.columns_ = columns_;
    std::vector<Unit> units = other.compared();
    if (std::ranges::all_of(units, is_right)) {
      std::vector<Misreading> left = of_causes();
      other.leave_out_wrong_ones(left);
      std::stable_partition(found_.causes.begin(), found_.causes.end(), [&](const Cause& cause) {
        return std::ranges::any_of(
            left, [&](const Misreading& one) { return one.meaning + where_ == cause.meaning; });
      });
      return;
    }
    other.leave_out_right_heads(units);
    rank(units, other.candidates(of_causes()), thresholds, threads_, other.found_);
    const auto is_there = [&](const Cause& cause) {
      return std::ranges::find(other.found_.causes, cause.meaning, &Cause::meaning) !=
             other.found_.causes.end();
    };
    if (std::ranges::any_of(found_.causes, is_there)) std::erase_if(found_.causes, std::not_fn(is_there));
  }

  /// To one of the heads, some columns, and tokens from the chunk that deviates on; or from the chunk before,
  /// as what that one leaves shows at once in the next one. Returns where the chunk that deviates begins.
  std::size_t narrow(std::size_t head, std::size_t columns, bool with_chunk_before = false) {
    const auto rows = static_cast<std::size_t>(problem_.options.chunk_size);
    const std::size_t from = std::min(deviation_, found_.end - 1),
                      own = from - (from - found_.sequence.begin) % rows,
                      first = with_chunk_before || from == own
                                  ? own - std::min(own - found_.sequence.begin, rows)
                                  : own;
    columns_ = some_of(columns_, columns);
    found_.heads = {found_.heads[head]}, starts_ = {starts_[head]}, gates_ = {gates_[head]};
    if (first <= found_.begin) return own;
    starts_[0] = answer_of(problem_, Interpretation(problem_),
                           {found_.sequence, found_.begin, first, found_.heads[0], starts_[0]})
                     .state;
    found_.begin = first;
    return own;
  }

  /// First those that explain most of a small part, where o deviates first, and those that need not show
  /// there: returns how many.
  std::size_t sort_by_part(std::vector<Misreading>& list) const {
    constexpr std::size_t most = 32, columns = 6, rows_behind = 24;
    if (list.size() <= most || deviation_ + 1 >= found_.end) return list.size();
    std::optional<FaultSearch> part;
    std::vector<Unit> units;
    for (std::size_t head = 0; head < found_.heads.size(); ++head) {
      part.emplace(*this).deviation_ = suspect_;
      part->narrow(head, columns);
      part->found_.end = std::min(found_.end, deviation_ + rows_behind);
      units = part->compared();
      if (!std::ranges::all_of(units, is_right)) break;
    }
    if (std::ranges::all_of(units, is_right)) return list.size();  // no o, or it shows elsewhere
    std::vector<bool> is_behind(list.size());
    std::vector<std::size_t> seen;
    std::vector<Misreading> tried;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Interpretation& reading = list[i].reading;
      if ((part->found_.begin > found_.begin && shows_at_start(reading)) || shows_at_end(reading) ||
          looks_ahead(reading))
        continue;
      seen.push_back(i), tried.push_back(list[i]);
    }
    const std::vector<std::size_t> best = best_first(units, part->candidates(tried), thresholds, threads_);
    std::vector<Misreading> behind;
    for (std::size_t i = most; i < best.size(); ++i)
      behind.push_back(tried[best[i]]), is_behind[seen[best[i]]] = true;
    std::size_t next = 0;
    std::erase_if(list, [&](const Misreading&) { return is_behind[next++]; });
    std::ranges::move(behind, std::back_inserter(list));
    return list.size() - behind.size();
  }

  /// Evenly from the first to the last.
  static std::vector<std::size_t> some_of(const std::vector<std::size_t>& columns,
                                          std::size_t enough = most_columns) {
    std::vector<std::size_t> some;
    for (std::size_t i = 0, count = std::min(enough, columns.size()); i < count; ++i)
      some.push_back(columns[(i * columns.size() + columns.size() / 2) / count]);
    return some;
  }

  /// A fault of some columns: no other column depends on them.
  bool search_in_columns(const std::vector<Unit>& units) {
    constexpr double clearly = 2;
    const std::string tensor = std::ranges::find_if_not(units, is_right)->tensor;
    std::vector<Distance> columns(d_.V);
    double expected = 0, limit = 0;
    for (const Unit& unit : units) {
      if (unit.tensor != tensor) continue;
      limit = unit.limit, expected = std::max(expected, size_of(unit.right));
      for (std::size_t i = 0; i < unit.got.size(); ++i) columns[i % d_.V].add(unit.got[i], unit.right[i]);
    }
    columns_.clear();
    for (std::size_t v = 0; v < d_.V; ++v)
      if (columns[v].size() > clearly * limit * expected / std::sqrt(static_cast<double>(d_.V)))
        columns_.push_back(v);
    const std::size_t count = columns_.size();
    if (count > 0 && count < d_.V) {
      where_ = count == 1 ? fmt::format(", in column {} alone", columns_.front())
               : columns_.back() - columns_.front() + 1 == count
                   ? fmt::format(", in columns {}..{} alone", columns_.front(), columns_.back())
                   : fmt::format(", in {} of {} columns alone", count, d_.V);
      if (search()) return true;
      wrong_columns_ = columns_, in_columns_ = where_;
    }
    columns_ = all_columns();
    return false;
  }

  /// No fault of the table, but a matrix of the chunk form that is another one: looked for in the chunk that
  /// deviates, and the one before, in a head and some columns, and then asked of all. What is added up over
  /// chunks differs from the second one on, perhaps not in its first row: `only_added` takes both always.
  bool search_in_moves(bool only_added) {
    if (!has_chunk_form(problem_)) return false;
    where_ = in_columns_, chunk_end_ = 0;
    if (!wrong_columns_.empty()) columns_ = wrong_columns_;
    FaultSearch part(*this);
    part.rank_moves(only_added);
    misreadings_ = std::move(part.misreadings_), others_.clear();
    for (Misreading& one : misreadings_) one.reading.loaded = nullptr, one.reading.beside = nullptr;
    found_.causes = std::move(part.found_.causes);
    std::optional<Cause> near = found_.causes.empty() ? part.found_.nearest : found_.causes.front();
    if (!found_.causes.empty()) ask_of_heads();
    if (found_.causes.empty() && near && (!nearest_ || near->explained > nearest_->explained)) {
      nearest_ = near;
      nearest_->meaning +=
          fmt::format(", in tokens {}..{} of head {}", part.found_.begin - found_.sequence.begin,
                      part.found_.end - found_.sequence.begin - 1, part.found_.heads[0]);
    }
    columns_ = all_columns();
    return !found_.causes.empty();
  }
  /// Of all, or of the first alone, as each may have another one.
  void ask_of_heads() {
    FaultSearch alone(*this);
    ask_of_all(columns_);
    if (!found_.causes.empty() || found_.heads.size() < 2) return;
    alone.found_.heads.resize(1), alone.starts_.resize(1), alone.gates_.resize(1);
    alone.ask_of_all(columns_);
    found_.causes = std::move(alone.found_.causes);
    for (Cause& cause : found_.causes) cause.meaning += fmt::format(", in head {}", found_.heads[0]);
  }
  void rank_moves(bool only_added) {
    const auto rows = static_cast<std::size_t>(problem_.options.chunk_size);
    const std::size_t own = narrow(0, most_columns, only_added),
                      first_row = found_.begin - found_.sequence.begin;
    found_.end = std::min(found_.end, own + rows);
    const Excerpt excerpt{found_.sequence,           found_.begin, found_.end, found_.heads[0],
                          state_before(0, columns_), columns_};
    const plain::Head head = plain::head_of(problem_, Interpretation(problem_), excerpt);
    const std::vector<plain::Chunk> chunks = plain::right_chunks(head, rows, first_row);
    std::map<std::pair<const plain::Site*, plain::Move::Source>, std::vector<plain::Matrix>> kept;
    misreadings_.clear();
    for (const plain::MovedMatrix& moved : plain::moved_matrices(false, d_.HV > 1)) {
      if (only_added && moved.move->source != plain::Move::Source::added) continue;
      Misreading one{0, 0, Interpretation(problem_), moved.name(), moved.meaning()};
      one.reading.chunk_fault = ChunkFault::moved, one.reading.site = moved.site, one.reading.chunk = rows,
      one.reading.loaded = &chunks;
      std::vector<plain::Matrix>& right = kept[{moved.site, plain::Move::Source::own}];
      if (right.empty()) right = plain::chunk_answer(head, rows, first_row, one.reading).kept;
      one.reading.move = moved.move;
      std::vector<plain::Matrix>& beside = kept[{moved.site, moved.move->source}];
      if (beside.empty()) beside = kept_beside(problem_, one.reading, excerpt);
      one.reading.beside = &beside;
      plain::Moving moving(moved.site, moved.move, rows, &beside);
      if (moved.move->mixes_columns) one.reading.loaded = nullptr, one.reading.beside = nullptr;
      if (deviation_ >= found_.end || moved.move->mixes_columns ||
          moving.changes(right, chunks, deviation_ - own))
        misreadings_.push_back(std::move(one));
    }
    if (found_.begin < own && own <= deviation_) {
      FaultSearch before(*this);
      before.found_.end = own;
      before.leave_out_wrong_ones(misreadings_);
    }
    Thresholds of_few = thresholds;
    of_few.most_named = 48;
    rank(compared(), candidates(misreadings_), of_few, threads_, found_);
  }
  void leave_out_wrong_ones(std::vector<Misreading>& list) const {
    constexpr double clearly = 4;
    const std::vector<Unit> units = compared();
    std::vector<char> is_wrong(list.size());
    parallel_for(list.size(), threads_, [&](std::size_t i, int) {
      const UnitValues values = answer(list[i].reading);
      for (std::size_t unit = 0; unit < units.size(); ++unit)
        if (!is_right({{}, clearly * units[unit].limit, units[unit].got, values[unit], 0})) is_wrong[i] = 1;
    });
    std::size_t next = 0;
    std::erase_if(list, [&](const Misreading&) { return is_wrong[next++] != 0; });
  }
  /// A fault of one chunk: that of the deviation, or the one before, which shows in the state behind it. Or
  /// from one of these on: of a second launch, of another rank.
  bool search_in_chunks() {
    const kda::Sequence& s = found_.sequence;
    const auto rows = static_cast<std::size_t>(problem_.options.chunk_size);
    const std::size_t first = found_.begin, last = found_.end,
                      own = deviation_ - (deviation_ - s.begin) % rows;
    if (s.length() <= rows || own < first) return false;
    const std::vector<std::vector<double>> starts = starts_;
    for (const bool is_alone : {true, false})
      for (const std::size_t back : {std::size_t{0}, rows}) {
        if (back > 0 && (deviation_ != own || own < first + rows)) continue;
        found_.begin = own - back;
        chunk_end_ = is_alone ? std::min(found_.begin + rows, s.end) : s.end;
        found_.end = is_alone ? std::min(limit_, chunk_end_ + tokens_before) : last;
        const bool is_known = !is_alone && (found_.begin + rows >= s.end || found_.begin == s.begin);
        if (is_known || (chunk_end_ >= found_.end && chunk_end_ < s.end)) continue;
        for (std::size_t i = 0; i < starts_.size() && found_.begin > first; ++i)
          starts_[i] = answer_of(problem_, Interpretation(problem_),
                                 {s, first, found_.begin, found_.heads[i], starts[i]})
                           .state;
        const std::size_t chunk = (found_.begin - s.begin) / rows;
        where_ = !is_alone
                     ? fmt::format(", from chunk {} on (t={})", chunk, found_.begin - s.begin)
                     : fmt::format(", in {} alone (t={}..{})",
                                   chunk_end_ == s.end ? "the last chunk" : fmt::format("chunk {}", chunk),
                                   found_.begin - s.begin, chunk_end_ - s.begin - 1);
        if (search()) return true;
        starts_ = starts;
      }
    found_.begin = first, found_.end = last;
    return false;
  }
  bool is_in_chunk() const { return chunk_end_ > 0; }

  /// No fault that is known, but numbers of tokens that are others: of which kind, and which.
  void search_in_tokens() {
    constexpr std::size_t least_columns = 8;  // that tell one or two numbers
    if (output_.o == nullptr || d_.V < least_columns || d_.strength != kda::Strength::head) return;
    where_.clear(), chunk_end_ = 0, columns_ = all_columns();
    const std::vector<Unit> units = compared();
    const std::size_t tried = found_.tried;
    if (const std::optional<Candidate> pairs = with_lost_pairs())
      rank(units, {*pairs}, thresholds, threads_, found_);
    if (const auto start = found_.causes.empty() ? with_other_start() : std::nullopt)
      rank(units, {*start}, thresholds, threads_, found_);
    for (const std::size_t numbers : {1, 2}) {
      if (!found_.causes.empty()) break;
      std::vector<Candidate> list;
      for (const TokenFit& fit : token_fits()) {
        // One factor for all channels is that of a gate that they share.
        const bool is_gate = std::ranges::find(fit.which, TokenFactor::decay) != fit.which.end();
        if (fit.which.size() != numbers || (is_gate && d_.decays() > 1)) continue;
        std::vector<FittedTokens> heads(found_.heads.size());
        parallel_for(heads.size(), threads_, [&](std::size_t i, int) { heads[i] = fitted(fit, i); });
        list.push_back({std::string(fit.name), fmt::format("{}: {}", fit.meaning, text_of_fit(fit, heads)),
                        [this, heads] {
                          UnitValues values;
                          for (const FittedTokens& head : heads) add_to(values, head.answer);
                          return values;
                        }});
      }
      rank(units, list, thresholds, threads_, found_);
    }
    found_.tried = tried;
  }
  /// What follows from another state before the first row of the chunk that deviates, where there are rows
  /// enough to tell: K numbers for each column.
  std::optional<Candidate> with_other_start() const {
    const auto rows = static_cast<std::size_t>(problem_.options.chunk_size);
    const std::size_t from = deviation_ - (deviation_ - found_.sequence.begin) % rows,
                      tokens = found_.end - from;
    if (from < found_.begin || tokens < 2 * d_.K) return std::nullopt;
    const Interpretation right(problem_);
    std::vector<ExcerptAnswer> heads;
    double size = 0, other_size = 0;
    for (std::size_t i = 0; i < found_.heads.size(); ++i) {
      Excerpt excerpt{found_.sequence, found_.begin, from, found_.heads[i], starts_[i]};
      ExcerptAnswer whole = answer_of(problem_, right, excerpt);
      excerpt.begin = from, excerpt.end = found_.end, excerpt.start = whole.state;
      std::vector<double> error = answer_of(problem_, right, excerpt).o;
      std::size_t wrong = 0;  // rows
      for (std::size_t row = 0; row < tokens; ++row) {
        Distance distance;
        for (std::size_t v = 0; v < d_.V; ++v) {
          double& x = error[row * d_.V + v];
          const double got = got_o(from + row, found_.heads[i], v);
          distance.add(got, x), x = got - x;
        }
        constexpr double clearly = 4;
        wrong += distance.ratio() > clearly * output_.o_limit;
      }
      if (2 * wrong < 3 * d_.K) return std::nullopt;
      const std::vector<double> change = fitted_start(plain::head_of(problem_, right, excerpt), error);
      for (const double x : excerpt.start) size += x * x;
      for (std::size_t k = 0; k < change.size(); ++k)
        excerpt.start[k] += change[k], other_size += excerpt.start[k] * excerpt.start[k];
      ExcerptAnswer rest = answer_of(problem_, right, excerpt);
      whole.o.insert(whole.o.end(), rest.o.begin(), rest.o.end());
      whole.state = std::move(rest.state);
      heads.push_back(std::move(whole));
    }
    const std::string of_size =
        size > 0 ? fmt::format(", {:.3g} times as large", std::sqrt(other_size / size)) : ", for zeros";
    return Candidate{"other_state",
                     fmt::format("the state before t={} is another one{}; what follows is right",
                                 from - found_.sequence.begin, of_size),
                     [this, heads] {
                       UnitValues values;
                       for (const ExcerptAnswer& head : heads) add_to(values, head);
                       return values;
                     }};
  }
  std::optional<Candidate> with_lost_pairs() const {
    std::vector<LostPairs> heads;
    std::size_t lost = 0, tried = 0;
    for (std::size_t i = 0; i < found_.heads.size(); ++i) {
      heads.push_back(lost_undecayed_pairs(inputs_of(i), rows_of(i),
                                           static_cast<std::size_t>(problem_.options.chunk_size),
                                           found_.begin - found_.sequence.begin));
      lost += heads.back().lost, tried += heads.back().tried;
    }
    if (lost == 0) return std::nullopt;
    return Candidate{
        "undecayed_pairs_lost",
        fmt::format("exp(G_i - G_j) is 0 for {} of {} pairs of rows with no decay between, as where "
                    "G_i - G_j is above 0 by a rounding and exp(x) is 0 for x > 0",
                    lost, tried),
        [this, heads] {
          UnitValues values;
          for (const LostPairs& head : heads) add_to(values, head.answer);
          return values;
        }};
  }
  plain::Head inputs_of(std::size_t head) const {
    return plain::head_of(problem_, Interpretation(problem_),
                          {found_.sequence, found_.begin, found_.end, found_.heads[head], starts_[head]});
  }
  std::vector<double> rows_of(std::size_t head) const {
    std::vector<double> got;
    for (std::size_t t = found_.begin; t < found_.end; ++t)
      for (std::size_t v = 0; v < d_.V; ++v) got.push_back(got_o(t, found_.heads[head], v));
    return got;
  }
  FittedTokens fitted(const TokenFit& fit, std::size_t head) const {
    return fitted_tokens(inputs_of(head), rows_of(head), fit, output_.o_limit);
  }
  std::string text_of_fit(const TokenFit& fit, const std::vector<FittedTokens>& heads) const {
    std::string text;
    for (std::size_t i = 0; i < fit.which.size(); ++i) {
      const Excerpt excerpt{found_.sequence, found_.begin, found_.end, found_.heads[0]};
      std::vector<double> right;
      if (fit.which[i] == TokenFactor::beta)
        right = plain::head_of(problem_, Interpretation(problem_), excerpt).beta;
      const std::string of_factor = text_of(heads[0].factors[i], right, found_.begin - found_.sequence.begin,
                                            std::max(1e-4, 4 * output_.o_limit));
      text += (text.empty() ? "" : "; ") + of_factor;
    }
    return heads.size() > 1 ? fmt::format("{} (head {})", text, found_.heads[0]) : text;
  }

  std::vector<std::size_t> all_columns() const {
    std::vector<std::size_t> all(d_.V);
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }

  // --- which tokens

  /// The first token of these heads whose row of o deviates from the right answer, and the first that errs by
  /// far more than those before it; the end without one. `limit` is where tokens that are not known begin.
  void find_deviation(std::size_t limit) {
    constexpr double clearly = 4, perhaps = 0.25;
    std::vector<Distance> rows(limit - found_.sequence.begin);
    for (const std::size_t head : found_.heads) {
      const ExcerptAnswer right = answer_of(problem_, Interpretation(problem_),
                                            {found_.sequence, found_.sequence.begin, limit, head});
      for (std::size_t row = 0; row < rows.size(); ++row)
        for (std::size_t v = 0; v < d_.V; ++v)
          rows[row].add(got_o(found_.sequence.begin + row, head, v),
                        in_range_of(output_.o->dtype(), right.o[row * d_.V + v]));
    }
    limit_ = deviation_ = suspect_ = limit;
    // A row that cancels is judged by the size of the rows before it.
    double largest = 0, error_before = HUGE_VAL;
    for (std::size_t row = 0; row < rows.size() && deviation_ == limit; ++row) {
      largest = std::max(largest, rows[row].expected.root());
      const double error = rows[row].size(), allowed = output_.o_limit * largest;
      if (error > clearly * error_before && error > perhaps * allowed)
        suspect_ = std::min(suspect_, found_.sequence.begin + row);
      if (error > clearly * allowed) deviation_ = found_.sequence.begin + row;
      error_before = row == 0 ? error : std::max(error, error_before);
    }
    suspect_ = std::min(suspect_, deviation_);
  }

  std::size_t first_without(bool (*is_known)(double)) const {
    for (std::size_t t = found_.sequence.begin; t < found_.sequence.end; ++t)
      for (const std::size_t head : found_.heads)
        for (std::size_t v = 0; v < d_.V; ++v)
          if (!is_known(got_o(t, head, v))) return t;
    return found_.sequence.end;
  }

  /// From the first token where that is affordable. Else from shortly before the deviation, with the state of
  /// the right reading: up to there the output was right.
  void choose_tokens() {
    const kda::Sequence& s = found_.sequence;
    found_.begin = s.begin, found_.end = s.end;
    deviation_ = suspect_ = s.begin, limit_ = s.end;
    if (output_.o == nullptr) {
      if (s.length() > whole_for_state) found_.begin = s.end - window_tokens;
    } else {
      find_deviation(first_without([](double x) { return std::isfinite(x); }));
      if (deviation_ == limit_)  // right as long as it is finite: a fault may be large at once
        find_deviation(first_without([](double x) { return !std::isnan(x); }));
      if (deviation_ - s.begin > effort_.most_tokens)
        found_.begin = deviation_ == s.end ? s.end - window_tokens : deviation_ - tokens_before;
      found_.begin -= (found_.begin - s.begin) % tokens_before;  // where chunks begin
      const std::size_t wanted =
          std::max(found_.begin + window_tokens, std::min(s.end, deviation_ + tokens_before));
      found_.end = std::min(limit_, wanted);
    }
    for (const std::size_t head : found_.heads)
      gates_.push_back(known_gates(problem_, {s, found_.begin, found_.end, head}));
    starts_.resize(found_.heads.size());
    if (found_.begin > s.begin)
      for (std::size_t i = 0; i < starts_.size(); ++i)
        starts_[i] =
            answer_of(problem_, Interpretation(problem_), {s, s.begin, found_.begin, found_.heads[i]}).state;
  }

  /// A fault of one head is looked for in that one.
  void leave_out_right_heads(std::vector<Unit>& units) {
    const auto each = static_cast<std::ptrdiff_t>(units.size() / found_.heads.size());
    for (auto head = std::ssize(found_.heads); head-- > 0 && found_.heads.size() > 1;) {
      const auto first = units.begin() + head * each;
      if (!std::all_of(first, first + each, is_right)) continue;
      units.erase(first, first + each);
      found_.heads.erase(found_.heads.begin() + head), starts_.erase(starts_.begin() + head);
      gates_.erase(gates_.begin() + head);
    }
  }

  // --- candidates

  void add_misreadings(std::size_t index, bool in_other_chunks) {
    const Fault& fault = faults()[index];
    if (!fault.applies(problem_)) return;
    ++found_.tried;
    if (in_other_chunks && fault.at != Fault::At::chunk) return;
    if (is_in_chunk() && is_at_token(fault)) return;
    for (const std::size_t at : places_of(fault, in_other_chunks))
      for (const Channels channels : {Channels::all, Channels::first, Channels::last})
        if (fault.in_part == (channels != Channels::all)) add_misreading(index, at, channels);
  }

  void add_misreading(std::size_t index, std::size_t at, Channels channels) {
    const Fault& fault = faults()[index];
    Misreading one{index,   at, Interpretation(problem_), std::string(fault.name), std::string(fault.meaning),
                   channels};
    change(one.reading, one);
    if (found_.begin > found_.sequence.begin && shows_at_start(one.reading)) return;
    if (is_in_chunk() &&
        (looks_back(one.reading) || (chunk_end_ < found_.sequence.end && shows_at_end(one.reading))))
      return;
    if (channels == Channels::first)
      one.name += "_in_first_channels",
          one.meaning += " in the first channels (up to the largest power of two below K)";
    if (channels == Channels::last)
      one.name += "_in_last_channels",
          one.meaning += " in the last channels (from the largest power of two below K on)";
    one.meaning += words_of_place(fault, at);
    misreadings_.push_back(std::move(one));
  }

  /// Whether it is another one here, and no fault of its own.
  bool is_other_row(RowOf row, const Fault& fault) const {
    const kda::Sequence& s = found_.sequence;
    Interpretation reading(problem_);
    fault.apply(reading, static_cast<std::size_t>(row));
    const bool has_neighbours = reading.rows.gate == RowOf::itself && reading.rows.beta == RowOf::itself;
    // By gate_late, gate_early those beyond the ends are 1.
    const bool has_own_end = reading.rows.gate != RowOf::itself && row < RowOf::before_or_zeros;
    if (row >= RowOf::before) return has_neighbours || has_own_end;
    switch (row) {
      case RowOf::start_of_row:
        return s.begin > 0;
      case RowOf::first_batch:
        return s.batch > 0;
      default:
        return s.length() > static_cast<std::size_t>(problem_.options.chunk_size);
    }
  }

  /// The token, not the last, behind which the state is nearest to the final one.
  std::size_t nearest_state() const {
    std::vector<double> state = state_before(0, columns_);
    std::size_t nearest = found_.begin;
    double least = HUGE_VAL;
    for (std::size_t t = found_.begin; t + 1 < found_.end; ++t) {
      state = answer_of(problem_, Interpretation(problem_),
                        {found_.sequence, t, t + 1, found_.heads[0], std::move(state), columns_, &gates_[0]})
                  .state;
      Distance distance;
      for (std::size_t i = 0; i < state.size(); ++i)
        distance.add(output_.final_state->value(element_of_state(found_.sequence.index, found_.heads[0], i)),
                     state[i]);
      if (distance.size() < least) nearest = t, least = distance.size();
    }
    return nearest;
  }

  std::vector<std::size_t> places_of(const Fault& fault, bool in_other_chunks) const {
    std::vector<std::size_t> places;
    const auto add = [&](std::size_t place) {
      if (std::ranges::find(places, place) == places.end()) places.push_back(place);
    };
    const auto own = static_cast<std::size_t>(problem_.options.chunk_size);
    switch (fault.at) {
      case Fault::At::everywhere:
        return {0};
      case Fault::At::token:  // need not show in its own row
        for (const std::size_t first : {deviation_, suspect_})
          for (std::size_t back = 0; back < 3 && first >= found_.begin + back; ++back) add(first - back);
        return places;
      case Fault::At::start:  // that of all is another fault; the first rows may hardly differ
        for (const std::size_t first : {deviation_, suspect_})
          for (const std::size_t multiple : {1, 16, 64})
            if (const std::size_t place = first - (first - found_.sequence.begin) % multiple;
                place > found_.begin && place < found_.end)
              add(place);
        return places;
      case Fault::At::stored:
        if (sees_final_state()) add(nearest_state());
        return places;
      case Fault::At::part:  // the first joint, or the second one where nothing precedes the first part
        for (const std::size_t first : {deviation_, suspect_})
          if (const std::size_t from = first - found_.sequence.begin, joint = from / 16 * 16; from > 0)
            for (const std::size_t part : {joint, joint / 2, from})
              if (part > 0 && part < found_.sequence.length()) add(part);  // a joint, not the end
        for (const std::size_t part : {16, 32, 64, 128})                   // of the final state alone
          if (deviation_ == found_.end && part < found_.sequence.length()) add(part);
        return places;
      case Fault::At::factor:
        return {};
      case Fault::At::function:
        for (std::size_t i = 0; i < other_softplus().size(); ++i) places.push_back(i);
        return places;
      case Fault::At::head:
        for (std::size_t i = 1; i < std::min(d_.HV, most_others + 1); ++i) add(i), add(d_.HV - i);
        return places;
      case Fault::At::layout:
        for (std::size_t input = 0; input < std::size(token_inputs); ++input)
          for (std::size_t i = 0; i < input_layouts().size(); ++i)
            if (input_layouts()[i].differs(axes_of(d_, static_cast<TokenInput>(input), own)))
              places.push_back(input * input_layouts().size() + i);
        return places;
      case Fault::At::row:
        for (std::size_t i = 1; i < rows_of_others; ++i)
          if (is_other_row(static_cast<RowOf>(i), fault)) places.push_back(i);
        return places;
      case Fault::At::block:
        for (std::size_t i = 0; i < std::size(inverse_products); ++i) places.push_back(i);
        return places;
      default:
        if (!in_other_chunks) return {own};
        for (const std::size_t rows : {64, 32, 16})
          if (rows != own) add(rows);
        return places;
    }
  }

  /// Two mistakes at once: what is best alone, and each other besides.
  std::vector<Misreading> pairs_of(const std::vector<std::size_t>& best) const {
    // Of large parts with those alone that explain most themselves.
    const kda::Sequence& s = found_.sequence;
    const bool is_large =
        static_cast<double>(found_.end - found_.begin) * static_cast<double>(d_.K * d_.V) > 1 << 22;
    const std::size_t seconds =
        std::min({best.size(), effort_.seconds, is_large ? seconds_of_large : best.size()});
    std::vector<Misreading> pairs;
    for (std::size_t i = 0; i < std::min(best.size(), firsts_of_two); ++i)
      for (std::size_t j = 0; j < seconds; ++j) {
        const Misreading &one = misreadings_[best[i]], &other = misreadings_[best[j]];
        if (one.fault == other.fault || (j < firsts_of_two && j < i)) continue;
        if (other.reading.goes_on && s.begin > window_tokens) continue;  // its past takes long
        const bool in_order = one.fault < other.fault;
        const Misreading &a = in_order ? one : other, &b = in_order ? other : one;
        Misreading& pair = pairs.emplace_back(Misreading{a.fault, a.at, Interpretation(problem_),
                                                         fmt::format("{} and {}", a.name, b.name),
                                                         fmt::format("{}, and {}", a.meaning, b.meaning)});
        change(pair.reading, a), change(pair.reading, b);
      }
    return pairs;
  }

  /// Those by a factor, with the one that explains most, where that is nearly all.
  std::vector<Misreading> by_fitted_factors(const std::vector<Unit>& units) const {
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < faults().size(); ++i)
      if (faults()[i].at == Fault::At::factor && faults()[i].applies(problem_)) rows.push_back(i);
    std::vector<std::optional<Misreading>> fits(rows.size());
    parallel_for(rows.size(), threads_, [&](std::size_t i, int) { fits[i] = fitted(rows[i], units); });
    std::vector<Misreading> found;
    for (std::optional<Misreading>& fit : fits)
      if (fit) found.push_back(std::move(*fit));
    return found;
  }

  std::optional<Misreading> fitted(std::size_t index, const std::vector<Unit>& units) const {
    constexpr double most_limits = 2;  // left: a parameter bends towards much that it is not
    const Fault& fault = faults()[index];
    Misreading one{index, 0, Interpretation(problem_), std::string(fault.name), {}};
    const auto with = [&](double factor) {
      one.at = static_cast<std::size_t>(std::llround(factor / Fault::factor_unit));
      fault.apply(one.reading, one.at);
      return answer(one.reading);
    };
    const double factor = fitted_factor(units, with);
    if (squares_left(units, with(factor)) > most_limits * most_limits * static_cast<double>(units.size()))
      return std::nullopt;
    with(factor);
    const double off = std::fabs(factor - 1);
    one.meaning = fault.meaning.ends_with('}')
                      ? fmt::format(fmt::runtime(fault.meaning), factor)
                      : fmt::format("{}: {:.{}g} of what it should be", fault.meaning, factor,
                                    3 + (off < 0.1) + (off < 0.01) + (off < 0.001));
    return one;
  }

  std::vector<Candidate> candidates(const std::vector<Misreading>& list) const {
    std::vector<Candidate> all;
    for (const Misreading& one : list)
      all.push_back(
          {one.name, one.meaning + where_, [this, reading = one.reading] { return answer(reading); }});
    return all;
  }

  // --- what is compared: o and the final state of each head, as far as they are there

  std::vector<Unit> compared() const {
    std::vector<Unit> list;
    UnitValues right = answer(Interpretation(problem_));
    const auto add = [&](const char* name, double limit, auto got) {
      Unit& unit = list.emplace_back(Unit{name, limit, {}, std::move(right[list.size()]), 1 / limit});
      for (std::size_t i = 0; i < unit.right.size(); ++i) unit.got.push_back(got(i));
    };
    for (const std::size_t head : found_.heads) {
      if (output_.o != nullptr)
        add("o", output_.o_limit, [&](std::size_t i) {
          return got_o(found_.begin + i / columns_.size(), head, columns_[i % columns_.size()]);
        });
      if (sees_final_state())
        add("final_state", output_.final_state_limit, [&](std::size_t i) {
          return output_.final_state->value(element_of_state(found_.sequence.index, head, i));
        });
    }
    return list;
  }

  /// Where element i lies of what is looked at of a state: [K][columns].
  std::size_t element_of_state(std::size_t sequence, std::size_t head, std::size_t i) const {
    return state_element(d_, problem_.options.state_v_first, sequence, head, i / columns_.size(),
                         columns_[i % columns_.size()]);
  }

  /// Of one head, from `begin` on, the columns that are looked at; behind the chunk that alone is wrong it
  /// goes on rightly.
  ExcerptAnswer excerpt(const Interpretation& reading, std::size_t head) const {
    const std::vector<std::size_t> columns = mixes_columns(reading) ? all_columns() : columns_;
    std::vector<double> start = state_before(head, columns);
    const std::size_t end = is_in_chunk() ? std::min(chunk_end_, found_.end) : found_.end;
    ExcerptAnswer answer = answer_of(
        problem_, reading,
        {found_.sequence, found_.begin, end, found_.heads[head], std::move(start), columns, &gates_[head]});
    if (end < found_.end) {
      ExcerptAnswer rest = answer_of(problem_, Interpretation(problem_),
                                     {found_.sequence, end, found_.end, found_.heads[head],
                                      std::move(answer.state), columns, &gates_[head]});
      answer.o.insert(answer.o.end(), rest.o.begin(), rest.o.end());
      answer.state = std::move(rest.state);
    }
    if (mixes_columns(reading)) return looked_at(answer, reading);
    return answer;
  }
  /// [K][columns], before `begin`; empty at the first token.
  std::vector<double> state_before(std::size_t head, const std::vector<std::size_t>& columns) const {
    std::vector<double> start;
    for (std::size_t k = 0; k < d_.K && !starts_[head].empty(); ++k)
      for (const std::size_t v : columns) start.push_back(starts_[head][k * d_.V + v]);
    return start;
  }
  ExcerptAnswer looked_at(const ExcerptAnswer& all, const Interpretation& reading) const {
    const bool v_first = problem_.options.state_v_first != reading.final_state_transposed;
    std::vector<double> stored(all.state.size());
    for (std::size_t i = 0; i < stored.size(); ++i)
      stored[state_element(d_, v_first, 0, 0, i / d_.V, i % d_.V)] = all.state[i];
    ExcerptAnswer seen;
    for (std::size_t row = 0; row < all.o.size(); row += d_.V)
      for (const std::size_t v : columns_) seen.o.push_back(all.o[row + v]);
    for (std::size_t i = 0; i < d_.K * columns_.size(); ++i)
      seen.state.push_back(stored[element_of_state(0, 0, i)]);
    return seen;
  }

  UnitValues answer(const Interpretation& reading) const {
    UnitValues list;
    for (std::size_t head = 0; head < found_.heads.size(); ++head) add_to(list, excerpt(reading, head));
    return list;
  }
  /// As the output stores it.
  void add_to(UnitValues& list, ExcerptAnswer answer) const {
    const auto add = [&](std::vector<double>& values, const Tensor& as) {
      for (double& x : values) x = in_range_of(as.dtype(), x);
      list.push_back(std::move(values));
    };
    if (output_.o != nullptr) add(answer.o, *output_.o);
    if (sees_final_state()) add(answer.state, *output_.final_state);
  }

  const Problem& problem_;
  const FailedOutput& output_;
  const kda::Dimensions d_;
  const int threads_;
  const NamingEffort effort_;
  Naming found_;
  std::vector<Misreading> misreadings_, others_;  ///< by one fault; by a factor and by two
  std::optional<Cause> nearest_;
  std::size_t deviation_ = 0, suspect_ = 0;  ///< first token that deviates; whose error is another one
  std::size_t limit_ = 0;                    ///< first that is not finite, or NaN
  std::vector<std::size_t> columns_;         ///< of values that are looked at
  std::vector<std::size_t> wrong_columns_;   ///< those that err, where others are right
  std::string in_columns_;                   ///< the same in words
  std::size_t chunk_end_ = 0;                ///< of the chunk that alone is wrong, where one is
  std::string where_;                        ///< the same in words
  std::vector<KnownGates> gates_;            ///< likewise
  std::vector<std::vector<double>> starts_;  ///< [head]: the state before `begin`; empty at the first token
};

}  // namespace

Naming name_fault(const Problem& problem, const FailedOutput& output, const FailurePlace& place, int threads,
                  const NamingEffort& effort) {
  return FaultSearch(problem, output, place, threads, effort).run();
}

}  // namespace kda_check::hypotheses

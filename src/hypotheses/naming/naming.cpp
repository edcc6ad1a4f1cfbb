#include "hypotheses/naming/naming.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "base/threads/parallel.hpp"
#include "hypotheses/naming/conditions.hpp"
#include "hypotheses/naming/moves.hpp"
#include "hypotheses/naming/token_fit.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;

constexpr std::size_t most_others = 4;  // heads before and behind, that another one is looked for in
constexpr double least_hint = 0.3;      // explained by what is said to be nearest
constexpr double as_near = 1e-3;        // of two that are as near the known one is said
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

template <class Value>
bool is_one_of(Value value, std::initializer_list<Value> these) {
  return std::ranges::find(these, value) != these.end();
}

/// Such a mistake shows from the first token on.
bool shows_at_start(const Interpretation& reading) {
  return !reading.initial_state || reading.initial_state_transposed || reading.initial_state_by_head ||
         reading.initial_sequence != nullptr || reading.initial_head != nullptr || reading.initial_scaled ||
         reading.round_initial != &unchanged || reading.untouched || reading.joint != Joint::none ||
         reading.goes_on || reading.begins_late != 0 ||
         is_one_of(reading.final, {FinalState::initial, FinalState::initial_again}) ||
         is_one_of(reading.chunk_fault,
                   {ChunkFault::first_chunk_alone, ChunkFault::state_of_stream, ChunkFault::state_of_first,
                    ChunkFault::initial_state_late, ChunkFault::sums_over_chunks});
}

/// ... and such a one behind the last.
bool shows_at_end(const Interpretation& reading) {
  return reading.final != FinalState::right || reading.final_state_transposed ||
         reading.round_final != &unchanged || reading.begins_late != 0;
}
/// It needs the chunk before.
bool looks_back(const Interpretation& reading) {
  return is_one_of(reading.final, {FinalState::tail_decay_stale, FinalState::stale_rows}) ||
         reading.chunk_fault == ChunkFault::state_of_before;
}
/// A row of o depends on what is behind it in its chunk, or on the chunk's being whole.
bool looks_ahead(const Interpretation& reading) {
  return is_one_of(reading.chunk_fault,
                   {ChunkFault::state_of_after, ChunkFault::scores_unmasked, ChunkFault::inverse_product});
}

class FaultSearch {
 public:
  FaultSearch(OutputWindow window, int threads, const NamingEffort& effort)
      : window_(std::move(window)), problem_(window_.problem), threads_(threads), effort_(effort) {}

  Naming run() {
    if (window_.begin < window_.end) name();
    found_.sequence = window_.sequence, found_.begin = window_.begin, found_.end = window_.end;
    found_.heads = window_.heads;
    return std::move(found_);
  }

 private:
  void name() {
    std::vector<Unit> units = window_.compared();
    if (std::ranges::all_of(units, is_right)) return;
    window_.leave_out_right_heads(units);
    if (!search() && !search_in_columns(units) && !search_in_chunks() && !search_in_moves(false) &&
        !search_in_moves(true))
      search_in_tokens();
    ask_at({problem_.sequences().size() - 1, window_.d.HV - 1});
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
  }

  /// Whether there is a cause: chunks of the problem's size first, of others where none of those is it.
  /// Looked for in some of the columns, which have all in common, and then asked of all.
  bool search() {
    const std::vector<std::size_t> scope = window_.columns;
    const bool is_quick = effort_.seconds < std::numeric_limits<std::size_t>::max();
    for (const bool in_other_chunks : {false, true}) {
      if (in_other_chunks && !where_.empty()) break;
      window_.columns = some_of(scope, most_columns);
      const std::vector<Unit> units = window_.compared();
      misreadings_.clear(), others_.clear(), found_.tried = 0;
      for (std::size_t i = 0; i < faults().size(); ++i) add_misreadings(i, in_other_chunks);
      const std::size_t kept = sort_by_part(misreadings_);
      rank(units,
           candidates({misreadings_.begin(), misreadings_.begin() + static_cast<std::ptrdiff_t>(kept)},
                      window_),
           thresholds, threads_, found_, [&](std::vector<std::size_t> best) {
             for (std::size_t i = kept; i < misreadings_.size() && !best.empty(); ++i) best.push_back(i);
             others_ = by_fitted_factors(units);
             if (where_.empty() && !(in_other_chunks && is_quick)) {
               std::vector<Misreading> pairs = pairs_of(best);
               pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(sort_by_part(pairs)), pairs.end());
               std::ranges::move(pairs, std::back_inserter(others_));
             }
             return candidates(others_, window_);
           });
      const bool is_of_some = window_.columns.size() < scope.size();
      window_.columns = scope;
      if (!found_.causes.empty() && is_of_some) ask(of_causes(), window_);
      if (!found_.causes.empty()) return true;
      if (!nearest_ || (found_.nearest && found_.nearest->explained > nearest_->explained + as_near))
        nearest_ = std::exchange(found_.nearest, {});
    }
    return false;
  }

  /// Which of these it is, of all that is looked at.
  void ask(const std::vector<Misreading>& named, const OutputWindow& window) {
    found_.causes.clear();
    rank(window.compared(), candidates(named, window), thresholds, threads_, found_);
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
    if (found_.causes.size() < 2 || window_.is_in_chunk() ||
        (place.sequence == window_.sequence.index && place.head == window_.heads[0]))
      return;
    OutputWindow other(problem_, window_.output, place, effort_.most_tokens);
    other.columns = window_.columns;
    std::vector<Unit> units = other.compared();
    if (std::ranges::all_of(units, is_right)) {
      std::vector<Misreading> left = of_causes();
      leave_out_wrong_ones(left, other);
      std::stable_partition(found_.causes.begin(), found_.causes.end(), [&](const Cause& cause) {
        return std::ranges::any_of(
            left, [&](const Misreading& one) { return one.meaning + where_ == cause.meaning; });
      });
      return;
    }
    other.leave_out_right_heads(units);
    Naming there;
    rank(units, candidates(of_causes(), other), thresholds, threads_, there);
    const auto is_there = [&](const Cause& cause) {
      return std::ranges::find(there.causes, cause.meaning, &Cause::meaning) != there.causes.end();
    };
    if (std::ranges::any_of(found_.causes, is_there)) std::erase_if(found_.causes, std::not_fn(is_there));
  }

  /// First those that explain most of a small part, where o deviates first, and those that need not show
  /// there: returns how many.
  std::size_t sort_by_part(std::vector<Misreading>& list) const {
    constexpr std::size_t most = 32, columns = 6, rows_behind = 24;
    if (list.size() <= most || window_.deviation + 1 >= window_.end) return list.size();
    std::optional<OutputWindow> part;
    std::vector<Unit> units;
    for (std::size_t head = 0; head < window_.heads.size(); ++head) {
      part.emplace(window_).deviation = window_.suspect;
      part->narrow(head, columns);
      part->end = std::min(window_.end, window_.deviation + rows_behind);
      units = part->compared();
      if (!std::ranges::all_of(units, is_right)) break;
    }
    if (std::ranges::all_of(units, is_right)) return list.size();  // no o, or it shows elsewhere
    std::vector<bool> is_behind(list.size());
    std::vector<std::size_t> seen;
    std::vector<Misreading> tried;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Interpretation& reading = list[i].reading;
      if ((part->begin > window_.begin && shows_at_start(reading)) || shows_at_end(reading) ||
          looks_ahead(reading))
        continue;
      seen.push_back(i), tried.push_back(list[i]);
    }
    const std::vector<std::size_t> best = best_first(units, candidates(tried, *part), thresholds, threads_);
    std::vector<Misreading> behind;
    for (std::size_t i = most; i < best.size(); ++i)
      behind.push_back(tried[best[i]]), is_behind[seen[best[i]]] = true;
    std::size_t next = 0;
    std::erase_if(list, [&](const Misreading&) { return is_behind[next++]; });
    std::ranges::move(behind, std::back_inserter(list));
    return list.size() - behind.size();
  }

  /// A fault of some columns: no other column depends on them.
  bool search_in_columns(const std::vector<Unit>& units) {
    constexpr double clearly = 2;
    const std::string tensor = std::ranges::find_if_not(units, is_right)->tensor;
    std::vector<Distance> columns(window_.d.V);
    double expected = 0, limit = 0;
    for (const Unit& unit : units) {
      if (unit.tensor != tensor) continue;
      limit = unit.limit, expected = std::max(expected, size_of(unit.right));
      for (std::size_t i = 0; i < unit.got.size(); ++i)
        columns[i % window_.d.V].add(unit.got[i], unit.right[i]);
    }
    std::vector<std::size_t>& wrong = window_.columns;
    wrong.clear();
    for (std::size_t v = 0; v < window_.d.V; ++v)
      if (columns[v].size() > clearly * limit * expected / std::sqrt(static_cast<double>(window_.d.V)))
        wrong.push_back(v);
    const std::size_t count = wrong.size();
    if (count > 0 && count < window_.d.V) {
      where_ = count == 1 ? fmt::format(", in column {} alone", wrong.front())
               : wrong.back() - wrong.front() + 1 == count
                   ? fmt::format(", in columns {}..{} alone", wrong.front(), wrong.back())
                   : fmt::format(", in {} of {} columns alone", count, window_.d.V);
      if (search()) return true;
      wrong_columns_ = wrong, in_columns_ = where_;
    }
    wrong = window_.all_columns();
    return false;
  }

  /// No fault of the table, but a matrix of the chunk form that is another one: looked for in the chunk that
  /// deviates, and the one before, in a head and some columns, and then asked of all. What is added up over
  /// chunks differs from the second one on, perhaps not in its first row: `only_added` takes both always.
  bool search_in_moves(bool only_added) {
    if (!has_chunk_form(problem_)) return false;
    where_ = in_columns_, window_.chunk_end = 0;
    if (!wrong_columns_.empty()) window_.columns = wrong_columns_;
    OutputWindow part(window_);
    Naming of_part;
    rank_moves(part, of_part, only_added);
    for (Misreading& one : misreadings_) one.reading.loaded = nullptr, one.reading.beside = nullptr;
    found_.causes = std::move(of_part.causes);
    std::optional<Cause> near = found_.causes.empty() ? of_part.nearest : found_.causes.front();
    if (!found_.causes.empty()) ask_of_heads();
    if (found_.causes.empty() && near && (!nearest_ || near->explained > nearest_->explained)) {
      nearest_ = near;
      nearest_->meaning += fmt::format(", in tokens {}..{} of head {}", part.begin - part.sequence.begin,
                                       part.end - part.sequence.begin - 1, part.heads[0]);
    }
    window_.columns = window_.all_columns();
    return !found_.causes.empty();
  }
  /// Of all, or of the first alone, as each may have another one.
  void ask_of_heads() {
    const std::vector<Misreading> named = of_causes();
    ask(named, window_);
    if (!found_.causes.empty() || window_.heads.size() < 2) return;
    OutputWindow first(window_);
    first.heads.resize(1), first.starts.resize(1), first.gates.resize(1);
    ask(named, first);
    for (Cause& cause : found_.causes) cause.meaning += fmt::format(", in head {}", first.heads[0]);
  }
  void rank_moves(OutputWindow& part, Naming& naming, bool only_added) {
    const std::size_t rows = part.chunk_size(), own = part.narrow(0, most_columns, only_added),
                      first_row = part.begin - part.sequence.begin;
    part.end = std::min(part.end, own + rows);
    const Excerpt excerpt = part.excerpt(0, part.columns);
    const plain::Head head = plain::head_of(problem_, Interpretation(problem_), excerpt);
    const std::vector<plain::Chunk> chunks = plain::right_chunks(head, rows, first_row);
    std::map<std::pair<const plain::Site*, plain::Move::Source>, std::vector<plain::Matrix>> kept;
    misreadings_.clear(), others_.clear();
    for (const plain::MovedMatrix& moved : plain::moved_matrices(false, window_.d.HV > 1)) {
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
      if (part.deviation >= part.end || moved.move->mixes_columns ||
          moving.changes(right, chunks, part.deviation - own))
        misreadings_.push_back(std::move(one));
    }
    if (part.begin < own && own <= part.deviation) {
      OutputWindow before(part);
      before.end = own;
      leave_out_wrong_ones(misreadings_, before);
    }
    Thresholds of_few = thresholds;
    of_few.most_named = 48;
    rank(part.compared(), candidates(misreadings_, part), of_few, threads_, naming);
  }
  void leave_out_wrong_ones(std::vector<Misreading>& list, const OutputWindow& window) const {
    constexpr double clearly = 4;
    const std::vector<Unit> units = window.compared();
    std::vector<char> is_wrong(list.size());
    parallel_for(list.size(), threads_, [&](std::size_t i, int) {
      const UnitValues values = window.answer(list[i].reading);
      for (std::size_t unit = 0; unit < units.size(); ++unit)
        if (!is_right({{}, clearly * units[unit].limit, units[unit].got, values[unit], 0})) is_wrong[i] = 1;
    });
    std::size_t next = 0;
    std::erase_if(list, [&](const Misreading&) { return is_wrong[next++] != 0; });
  }
  /// A fault of one chunk: that of the deviation, or the one before, which shows in the state behind it. Or
  /// from one of these on: of a second launch, of another rank.
  bool search_in_chunks() {
    const kda::Sequence& s = window_.sequence;
    const std::size_t rows = window_.chunk_size(), own = window_.chunk_of(window_.deviation);
    if (s.length() <= rows || own < window_.begin) return false;
    const OutputWindow whole(window_);
    for (const bool is_alone : {true, false})
      for (const std::size_t back : {std::size_t{0}, rows}) {
        if (back > 0 && (window_.deviation != own || own < whole.begin + rows)) continue;
        const std::size_t begin = own - back, end = is_alone ? std::min(begin + rows, s.end) : s.end;
        window_.chunk_end = end;
        window_.end = is_alone ? std::min(window_.limit, end + tokens_before) : whole.end;
        const bool is_known = !is_alone && (begin + rows >= s.end || begin == s.begin);
        if (is_known || (end >= window_.end && end < s.end)) continue;
        window_.begin_at(begin);
        const std::size_t chunk = (begin - s.begin) / rows;
        where_ = !is_alone ? fmt::format(", from chunk {} on (t={})", chunk, begin - s.begin)
                           : fmt::format(", in {} alone (t={}..{})",
                                         end == s.end ? "the last chunk" : fmt::format("chunk {}", chunk),
                                         begin - s.begin, end - s.begin - 1);
        if (search()) return true;
        window_.begin = whole.begin, window_.starts = whole.starts;
      }
    window_.end = whole.end;
    return false;
  }
  /// No fault that is known, but numbers of tokens that are others.
  void search_in_tokens() {
    where_.clear(), window_.chunk_end = 0, window_.columns = window_.all_columns();
    rank_token_numbers(window_, thresholds, threads_, found_);
  }

  void add_misreadings(std::size_t index, bool in_other_chunks) {
    const Fault& fault = faults()[index];
    if (!fault.applies(problem_)) return;
    ++found_.tried;
    if (in_other_chunks && fault.at != Fault::At::chunk) return;
    if (window_.is_in_chunk() && is_at_token(fault)) return;
    for (const std::size_t at : places_of(fault, in_other_chunks))
      for (const Channels channels : {Channels::all, Channels::first, Channels::last})
        if (fault.in_part == (channels != Channels::all)) add_misreading(index, at, channels);
  }

  void add_misreading(std::size_t index, std::size_t at, Channels channels) {
    const Fault& fault = faults()[index];
    Misreading one{index,   at, Interpretation(problem_), std::string(fault.name), std::string(fault.meaning),
                   channels};
    change(one.reading, one);
    if (window_.begin > window_.sequence.begin && shows_at_start(one.reading)) return;
    if (window_.is_in_chunk() &&
        (looks_back(one.reading) || (window_.chunk_end < window_.sequence.end && shows_at_end(one.reading))))
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
    const kda::Sequence& s = window_.sequence;
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
        for (const std::size_t first : {window_.deviation, window_.suspect})
          for (std::size_t back = 0; back < 3 && first >= window_.begin + back; ++back) add(first - back);
        return places;
      case Fault::At::start:  // that of all is another fault; the first rows may hardly differ
        for (const std::size_t first : {window_.deviation, window_.suspect})
          for (const std::size_t multiple : {1, 16, 64})
            if (const std::size_t place = first - (first - window_.sequence.begin) % multiple;
                place > window_.begin && place < window_.end)
              add(place);
        return places;
      case Fault::At::stored:
        if (window_.sees_final_state()) add(window_.nearest_state());
        return places;
      case Fault::At::part:  // the first joint, or the second one where nothing precedes the first part
        for (const std::size_t first : {window_.deviation, window_.suspect})
          if (const std::size_t from = first - window_.sequence.begin, joint = from / 16 * 16; from > 0)
            for (const std::size_t part : {joint, joint / 2, from})
              if (part > 0 && part < window_.sequence.length()) add(part);  // a joint, not the end
        for (const std::size_t part : {16, 32, 64, 128})                    // of the final state alone
          if (window_.deviation == window_.end && part < window_.sequence.length()) add(part);
        return places;
      case Fault::At::factor:
        return {};
      case Fault::At::function:
        for (std::size_t i = 0; i < other_softplus().size(); ++i) places.push_back(i);
        return places;
      case Fault::At::head:
        for (std::size_t i = 1; i < std::min(window_.d.HV, most_others + 1); ++i)
          add(i), add(window_.d.HV - i);
        return places;
      case Fault::At::layout:
        for (std::size_t input = 0; input < std::size(token_inputs); ++input)
          for (std::size_t i = 0; i < input_layouts().size(); ++i)
            if (input_layouts()[i].differs(axes_of(window_.d, static_cast<TokenInput>(input), own)))
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
    const kda::Sequence& s = window_.sequence;
    const bool is_large =
        static_cast<double>(window_.end - window_.begin) * static_cast<double>(window_.d.K * window_.d.V) >
        1 << 22;
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
      return window_.answer(one.reading);
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

  std::vector<Candidate> candidates(const std::vector<Misreading>& list, const OutputWindow& window) const {
    std::vector<Candidate> all;
    for (const Misreading& one : list)
      all.push_back({one.name, one.meaning + where_,
                     [&window, reading = one.reading] { return window.answer(reading); }});
    return all;
  }

  OutputWindow window_;
  const Problem& problem_;
  const int threads_;
  const NamingEffort effort_;
  Naming found_;
  std::vector<Misreading> misreadings_, others_;  ///< by one fault; by a factor and by two
  std::optional<Cause> nearest_;
  std::vector<std::size_t> wrong_columns_;  ///< those that err, where others are right
  std::string in_columns_, where_;          ///< the same in words; in which part it is, in words
};

}  // namespace

Naming name_fault(const Problem& problem, const FailedOutput& output, const FailurePlace& place, int threads,
                  const NamingEffort& effort) {
  return FaultSearch({problem, output, place, effort.most_tokens}, threads, effort).run();
}

}  // namespace kda_check::hypotheses

#include "hypotheses/naming/output_window.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "hypotheses/naming/moves.hpp"

namespace kda_check::hypotheses {

namespace {

constexpr std::size_t most_heads = 2;
constexpr std::size_t whole_for_state = 2048;  // longest sequence looked at whole for its final state alone

/// A column of what it gives depends on others.
bool mixes_columns(const Interpretation& reading) {
  return reading.final_state_transposed || reading.chunk_fault == ChunkFault::carry_by_column ||
         (reading.move != nullptr && reading.move->mixes_columns);
}

}  // namespace

OutputWindow::OutputWindow(const kda::Problem& of, const FailedOutput& got, const FailurePlace& place,
                           std::size_t most_tokens)
    : problem(of), output(got), d(of.dimensions()), sequence(of.sequences().at(place.sequence)) {
  const kda::Sequence& s = sequence;
  for (std::size_t i = 0; i < std::min(d.HV, most_heads); ++i) heads.push_back((place.head + i) % d.HV);
  columns = all_columns(), starts.resize(heads.size());
  begin = deviation = suspect = s.begin, end = limit = s.end;
  std::size_t first = s.begin;
  if (output.o == nullptr) {
    if (s.length() > whole_for_state) first = s.end - window_tokens;
  } else {
    find_deviation([](double x) { return std::isfinite(x); });
    if (deviation == limit)  // right as long as it is finite: a fault may be large at once
      find_deviation([](double x) { return !std::isnan(x); });
    if (deviation - s.begin > most_tokens)
      first = deviation == s.end ? s.end - window_tokens : deviation - tokens_before;
    first -= (first - s.begin) % tokens_before;  // where chunks begin
    end = std::min(limit, std::max(first + window_tokens, std::min(s.end, deviation + tokens_before)));
  }
  for (const std::size_t head : heads) gates.push_back(known_gates(problem, {s, first, end, head}));
  begin_at(first);
}

/// The first token of these heads whose row of o deviates from the right answer, and the first that errs by
/// far more than those before it; `limit` without one, where tokens begin that are not known.
void OutputWindow::find_deviation(bool (*is_known)(double)) {
  constexpr double clearly = 4, perhaps = 0.25;
  const auto is_row = [&](std::size_t t) {
    for (const std::size_t head : heads)
      for (std::size_t v = 0; v < d.V; ++v)
        if (!is_known(got_o(t, head, v))) return false;
    return true;
  };
  limit = sequence.begin;
  while (limit < sequence.end && is_row(limit)) ++limit;
  std::vector<Distance> rows(limit - sequence.begin);
  for (const std::size_t head : heads) {
    const ExcerptAnswer right =
        answer_of(problem, Interpretation(problem), {sequence, sequence.begin, limit, head});
    for (std::size_t row = 0; row < rows.size(); ++row)
      for (std::size_t v = 0; v < d.V; ++v)
        rows[row].add(got_o(sequence.begin + row, head, v),
                      in_range_of(output.o->dtype(), right.o[row * d.V + v]));
  }
  deviation = suspect = limit;
  // A row that cancels is judged by the size of the rows before it.
  double largest = 0, error_before = HUGE_VAL;
  for (std::size_t row = 0; row < rows.size() && deviation == limit; ++row) {
    largest = std::max(largest, rows[row].expected.root());
    const double error = rows[row].size(), allowed = output.o_limit * largest;
    if (error > clearly * error_before && error > perhaps * allowed)
      suspect = std::min(suspect, sequence.begin + row);
    if (error > clearly * allowed) deviation = sequence.begin + row;
    error_before = row == 0 ? error : std::max(error, error_before);
  }
  suspect = std::min(suspect, deviation);
}

void OutputWindow::begin_at(std::size_t token) {
  for (std::size_t i = 0; i < heads.size() && token > begin; ++i)
    starts[i] =
        answer_of(problem, Interpretation(problem), {sequence, begin, token, heads[i], std::move(starts[i])})
            .state;
  begin = token;
}

std::size_t OutputWindow::narrow(std::size_t head, std::size_t most_columns, bool with_chunk_before) {
  const std::size_t from = std::min(deviation, end - 1), own = chunk_of(from),
                    first = with_chunk_before || from == own
                                ? own - std::min(own - sequence.begin, chunk_size())
                                : own;
  columns = some_of(columns, most_columns);
  heads = {heads[head]}, starts = {starts[head]}, gates = {gates[head]};
  if (first > begin) begin_at(first);
  return own;
}

void OutputWindow::leave_out_right_heads(std::vector<Unit>& units) {
  const auto each = static_cast<std::ptrdiff_t>(units.size() / heads.size());
  for (auto head = std::ssize(heads); head-- > 0 && heads.size() > 1;) {
    const auto first = units.begin() + head * each;
    if (!std::all_of(first, first + each, is_right)) continue;
    units.erase(first, first + each);
    heads.erase(heads.begin() + head), starts.erase(starts.begin() + head);
    gates.erase(gates.begin() + head);
  }
}

double OutputWindow::got_o(std::size_t token, std::size_t head, std::size_t column) const {
  return output.o->value(((sequence.batch * d.T + token) * d.HV + head) * d.V + column);
}

std::vector<std::size_t> OutputWindow::all_columns() const {
  std::vector<std::size_t> all(d.V);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::vector<Unit> OutputWindow::compared() const {
  std::vector<Unit> list;
  UnitValues right = answer(Interpretation(problem));
  const auto add = [&](const char* name, double most, auto got) {
    Unit& unit = list.emplace_back(Unit{name, most, {}, std::move(right[list.size()]), 1 / most});
    for (std::size_t i = 0; i < unit.right.size(); ++i) unit.got.push_back(got(i));
  };
  for (const std::size_t head : heads) {
    if (output.o != nullptr)
      add("o", output.o_limit, [&](std::size_t i) {
        return got_o(begin + i / columns.size(), head, columns[i % columns.size()]);
      });
    if (sees_final_state())
      add("final_state", output.final_state_limit, [&](std::size_t i) {
        return output.final_state->value(element_of_state(sequence.index, head, i));
      });
  }
  return list;
}

/// Where element i lies of what is looked at of a state: [K][columns].
std::size_t OutputWindow::element_of_state(std::size_t of_sequence, std::size_t head, std::size_t i) const {
  return state_element(d, problem.options.state_v_first, of_sequence, head, i / columns.size(),
                       columns[i % columns.size()]);
}

UnitValues OutputWindow::answer(const Interpretation& reading) const {
  std::vector<ExcerptAnswer> list;
  for (std::size_t head = 0; head < heads.size(); ++head) list.push_back(answer_in(head, reading));
  return stored(std::move(list));
}

UnitValues OutputWindow::stored(std::vector<ExcerptAnswer> list) const {
  UnitValues values;
  const auto add = [&](std::vector<double>& of, const tensor::Tensor& as) {
    for (double& x : of) x = in_range_of(as.dtype(), x);
    values.push_back(std::move(of));
  };
  for (ExcerptAnswer& one : list) {
    if (output.o != nullptr) add(one.o, *output.o);
    if (sees_final_state()) add(one.state, *output.final_state);
  }
  return values;
}

/// Of one head, from `begin` on, the columns that are looked at; behind the chunk that alone is wrong it
/// goes on rightly.
ExcerptAnswer OutputWindow::answer_in(std::size_t head, const Interpretation& reading) const {
  Excerpt part = excerpt(head, mixes_columns(reading) ? all_columns() : columns);
  if (is_in_chunk()) part.end = std::min(chunk_end, end);
  ExcerptAnswer all = answer_of(problem, reading, part);
  if (part.end < end) {
    part.begin = std::exchange(part.end, end), part.start = std::move(all.state);
    ExcerptAnswer rest = answer_of(problem, Interpretation(problem), part);
    all.o.insert(all.o.end(), rest.o.begin(), rest.o.end());
    all.state = std::move(rest.state);
  }
  return mixes_columns(reading) ? looked_at(all, reading) : all;
}

Excerpt OutputWindow::excerpt(std::size_t head, std::vector<std::size_t> some_columns) const {
  Excerpt part{sequence, begin, end, heads[head], {}, std::move(some_columns), &gates[head]};
  for (std::size_t k = 0; k < d.K && !starts[head].empty(); ++k)
    for (const std::size_t v : part.columns) part.start.push_back(starts[head][k * d.V + v]);
  return part;
}

ExcerptAnswer OutputWindow::looked_at(const ExcerptAnswer& all, const Interpretation& reading) const {
  const bool v_first = problem.options.state_v_first != reading.final_state_transposed;
  std::vector<double> as_stored(all.state.size());
  for (std::size_t i = 0; i < as_stored.size(); ++i)
    as_stored[state_element(d, v_first, 0, 0, i / d.V, i % d.V)] = all.state[i];
  ExcerptAnswer seen;
  for (std::size_t row = 0; row < all.o.size(); row += d.V)
    for (const std::size_t v : columns) seen.o.push_back(all.o[row + v]);
  for (std::size_t i = 0; i < d.K * columns.size(); ++i)
    seen.state.push_back(as_stored[element_of_state(0, 0, i)]);
  return seen;
}

std::size_t OutputWindow::nearest_state() const {
  Excerpt token = excerpt(0, columns);
  std::size_t nearest = begin;
  double least = HUGE_VAL;
  for (std::size_t t = begin; t + 1 < end; ++t) {
    token.begin = t, token.end = t + 1;
    token.start = answer_of(problem, Interpretation(problem), token).state;
    Distance distance;
    for (std::size_t i = 0; i < token.start.size(); ++i)
      distance.add(output.final_state->value(element_of_state(sequence.index, heads[0], i)), token.start[i]);
    if (distance.size() < least) nearest = t, least = distance.size();
  }
  return nearest;
}

std::vector<std::size_t> some_of(const std::vector<std::size_t>& columns, std::size_t most) {
  std::vector<std::size_t> some;
  for (std::size_t i = 0, count = std::min(most, columns.size()); i < count; ++i)
    some.push_back(columns[(i * columns.size() + columns.size() / 2) / count]);
  return some;
}

}  // namespace kda_check::hypotheses

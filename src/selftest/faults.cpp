#include "selftest/faults.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/power_faults.hpp"
#include "hypotheses/naming/faults.hpp"
#include "kda/bounds/log_decays.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::selftest {

namespace {

using hypotheses::Interpretation;
using kda::Answer;
using kda::Problem;
using kda::Sequence;
using numeric::DType;
using tensor::Tensor;

/// Where both overflow alike, or are NaN, nothing is wrong.
std::vector<double> difference(const Tensor& wrong, const Tensor& right, double factor = 1) {
  std::vector<double> values(wrong.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = wrong.value(i), y = right.value(i);
    values[i] = x == y || (std::isnan(x) && std::isnan(y)) ? 0 : (x - y) * factor;
  }
  return values;
}
Difference difference(const Answer& wrong, const Answer& right, double factor = 1) {
  return {difference(wrong.o, right.o, factor), difference(wrong.final_state, right.final_state, factor)};
}

Difference nothing(const Solved& healthy) {
  return {std::vector<double>(healthy.answer.o.size()),
          std::vector<double>(healthy.answer.final_state.size())};
}

/// The answer to another problem.
Difference changed(const Solved& healthy, const Problem& other, double factor = 1) {
  const int threads = healthy.options.threads;
  return difference(kda::answer_in_fp64(other, threads), kda::answer_in_fp64(healthy.problem, threads),
                    factor);
}

Difference misread(const Solved& healthy, const Interpretation& reading, double factor = 1) {
  return difference(hypotheses::answer_of(healthy.problem, reading),
                    kda::answer_in_fp64(healthy.problem, healthy.options.threads), factor);
}

/// How far a parameter is moved for a derivative.
constexpr double small_share = 0x1p-8;

/// A token of a sequence about which something happens once: not the first, nor at the edge of a chunk.
std::size_t middle_of(std::size_t count) {
  return count < 3 ? 0 : std::min(count - 2, static_cast<std::size_t>(0.53 * static_cast<double>(count)));
}

Sequence longest_of(const Problem& problem) {
  const std::vector<Sequence> sequences = problem.sequences();
  return *std::ranges::max_element(sequences, {}, &Sequence::length);
}

}  // namespace

Difference output_itself(const Solved& healthy) {
  Difference all = nothing(healthy);
  for (std::size_t i = 0; i < all.o.size(); ++i) all.o[i] = healthy.answer.o.value(i);
  return all;
}

Difference known_fault(const Solved& healthy, std::string_view name, std::size_t place) {
  Interpretation reading(healthy.problem);
  std::ranges::find(hypotheses::faults(), name, &hypotheses::Fault::name)->change(reading, place);
  return misread(healthy, reading);
}

Difference last_row_stale(const Solved& healthy) {
  return known_fault(healthy, "row_stale", healthy.problem.dimensions().T - 1);
}

Difference state_itself(const Solved& healthy) {
  Difference all = nothing(healthy);
  for (std::size_t i = 0; i < all.final_state.size(); ++i)
    all.final_state[i] = healthy.answer.final_state.value(i);
  return all;
}

Difference gate_scaled(const Solved& healthy) {
  Interpretation reading(healthy.problem);
  reading.gate_factor = 1 + small_share;
  return misread(healthy, reading, 1 / small_share);
}

Difference gate_of_second_token(const Solved& healthy) {
  Problem other = kda::clone(healthy.problem);
  const kda::Dimensions& d = other.dimensions();
  const std::size_t row = d.HV * d.decays();
  for (const Sequence& sequence : other.sequences())
    for (std::size_t t = 0; t + 1 < sequence.length(); t += healthy.options.chunk_size)
      for (std::size_t i = 0; i < row; ++i) {
        const std::size_t first = (sequence.batch * d.T + sequence.begin + t) * row;
        other.g.set(first + i, healthy.problem.g.value(first + row + i));
      }
  return changed(healthy, other);
}

Difference gate_of_slowest_channel(const Solved& healthy) {
  const Problem plain = kda::with_log_decays(healthy.problem);
  std::vector<kda::DecayOf> slowest;
  for (std::size_t head = 0; head < plain.dimensions().HV; ++head)
    if (const std::optional<std::size_t> channel = kda::slowest_channel(plain, head))
      slowest.emplace_back(head, channel);
  return changed(healthy, kda::with_scaled_log_decays(plain, slowest, 1 - small_share), 1 / small_share);
}

Difference beta_scaled(const Solved& healthy) {
  Interpretation reading(healthy.problem);
  reading.beta_factor = 1 + small_share;
  return misread(healthy, reading, 1 / small_share);
}

Difference initial_state_in_bf16(const Solved& healthy) {
  if (!healthy.problem.initial_state) return nothing(healthy);
  Problem other = kda::clone(healthy.problem);
  other.initial_state = other.initial_state->converted_to(DType::bf16).converted_to(DType::fp32);
  return changed(healthy, other);
}

Difference carried_state_itself(const Solved& healthy) {
  // The answer is linear in the state and the values, so it is the answer to values that end there.
  const Problem& problem = healthy.problem;
  const kda::Dimensions& d = problem.dimensions();
  const std::size_t row = d.HV * d.V, tokens = healthy.options.chunk_size;
  Problem until = kda::clone(problem);
  Difference all = nothing(healthy);
  for (const Sequence& sequence : problem.sequences()) {
    const std::size_t first = (sequence.batch * d.T + sequence.begin) * row;
    for (std::size_t i = std::min(tokens, sequence.length()) * row; i < sequence.length() * row; ++i)
      until.v.set(first + i, 0);
  }
  const Answer answer = kda::answer_in_fp64(until, healthy.options.threads);
  for (const Sequence& sequence : problem.sequences()) {
    if (sequence.length() <= tokens) continue;
    const std::size_t first = (sequence.batch * d.T + sequence.begin) * row;
    for (std::size_t i = first + tokens * row; i < first + sequence.length() * row; ++i)
      all.o[i] = answer.o.value(i);
    const std::size_t state = d.HV * d.K * d.V;
    for (std::size_t i = sequence.index * state; i < (sequence.index + 1) * state; ++i)
      all.final_state[i] = answer.final_state.value(i);
  }
  return all;
}

Difference output_of_last_head(const Solved& healthy) {
  const kda::Dimensions& d = healthy.problem.dimensions();
  Difference all = nothing(healthy);
  for (std::size_t row = 0; row < d.B * d.T; ++row)
    for (std::size_t v = 0; v < d.V; ++v) {
      const std::size_t first = row * d.HV * d.V + v, last = first + (d.HV - 1) * d.V;
      all.o[first] = healthy.answer.o.value(last) - healthy.answer.o.value(first);
    }
  return all;
}

namespace {

/// Half-open.
struct Interval {
  std::size_t begin = 0, end = 0;
  bool has(std::size_t i) const { return begin <= i && i < end; }
};

constexpr std::size_t tile_side = 16, window_tokens = 8;

/// The block of `side` that an index lies in.
Interval block_around(std::size_t index, std::size_t side, std::size_t count) {
  return {index / side * side, std::min(count, (index / side + 1) * side)};
}

/// Whether a row of o is in a place; columns are for the caller.
bool has_token(Where where, std::size_t token, std::size_t tokens, std::size_t chunk) {
  const std::size_t middle = middle_of(tokens);
  switch (where) {
    case Where::chunk:
      return block_around(middle, chunk, tokens).has(token);
    case Where::window:
      return block_around(middle, window_tokens, tokens).has(token);
    case Where::tile:
      return block_around(middle, tile_side, tokens).has(token);
    case Where::row:
    case Where::element:
      return token == middle;
    case Where::last_rows:
      return token % chunk + 1 == chunk;
    case Where::ragged:
      return token >= tokens / chunk * chunk;
    default:
      return true;
  }
}

bool in_all_heads(Where where) {
  return where == Where::everywhere || where == Where::last_rows || where == Where::ragged;
}
bool in_all_sequences(Where where) {
  return in_all_heads(where) || where == Where::head || where == Where::column;
}

Interval columns_of(Where where, std::size_t width, std::size_t element) {
  const std::size_t middle = middle_of(width);
  if (where == Where::column) return {middle, middle + 1};
  if (where == Where::tile) return block_around(middle, tile_side, width);
  if (where == Where::element) return {element, element + 1};
  return {0, width};
}

}  // namespace

void keep_only(Where where, const Solved& healthy, Difference& difference) {
  if (where == Where::everywhere) return;
  const Problem& problem = healthy.problem;
  const kda::Dimensions& d = problem.dimensions();
  const Sequence longest = longest_of(problem);
  const judge::RowLayout layout =
      judge::row_layout("o", healthy.answer.o.shape(), problem, healthy.options.chunk_size);
  const std::size_t only_head = where == Where::head ? d.HV - 1 : 0;
  const bool is_part = where == Where::head    ? d.HV > 1
                       : where == Where::chunk ? longest.length() > healthy.options.chunk_size
                                               : true;
  for (const Sequence& sequence : problem.sequences())
    for (std::size_t head = 0; head < d.HV; ++head) {
      const bool here = is_part && (in_all_sequences(where) || sequence.index == longest.index) &&
                        (in_all_heads(where) || head == only_head);
      for (std::size_t t = 0; t < sequence.length(); ++t) {
        const std::size_t row = sequence.batch * d.T + sequence.begin + t;
        const bool row_here = here && has_token(where, t, sequence.length(), healthy.options.chunk_size);
        const std::size_t element = row_here && where == Where::element
                                        ? engine::typical_column(layout, healthy.answer.o, row, head)
                                        : 0;
        const Interval columns = columns_of(where, d.V, element);
        for (std::size_t v = 0; v < d.V; ++v)
          if (!row_here || !columns.has(v)) difference.o[layout.element(row, head, v)] = 0;
      }
      const bool has_rows = where == Where::row || where == Where::element;
      const bool in_state = here && (where == Where::head || where == Where::column || has_rows);
      const std::size_t channel = middle_of(d.K);
      const Interval columns = columns_of(where, d.V, middle_of(d.V));
      for (std::size_t k = 0; k < d.K; ++k)
        for (std::size_t v = 0; v < d.V; ++v)
          if (!in_state || (has_rows && k != channel) || !columns.has(v))
            difference.final_state[hypotheses::state_element(d, problem.options.state_v_first, sequence.index,
                                                             head, k, v)] = 0;
    }
}

}  // namespace kda_check::selftest

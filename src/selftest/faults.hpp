// What wrong kernels do, as what it adds to the answer of a right one: so a fault can be had in part and in
// one place, beside the rounding errors of any kernel (docs/selftest.md).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kda/variants/variants.hpp"

namespace kda_check::selftest {

/// A problem, how it is to be solved, and what a healthy kernel answers, not yet stored in its element types.
struct Solved {
  const kda::Problem& problem;
  const kda::RunOptions& options;
  const kda::Answer& answer;
};

/// Wrong less right, for each element of o and of final_state.
struct Difference {
  std::vector<double> o, final_state;
};

/// Errors of the fault itself are those of fp64.
using Fault = Difference (*)(const Solved& healthy);

// Multiples of the healthy answer: a share of 0.01 is 1 % too large.
Difference output_itself(const Solved& healthy);
Difference state_itself(const Solved& healthy);

/// A row of hypotheses/naming/faults.hpp; `place`: of one token that one, else the rows of a chunk.
Difference known_fault(const Solved& healthy, std::string_view name, std::size_t place);
// The recurrence misread.
Difference gate_of_second_token(const Solved& healthy);  ///< at the first token of every chunk
Difference gate_scaled(
    const Solved& healthy);  ///< log decays, for a small share, of which this is a multiple
Difference gate_of_slowest_channel(
    const Solved& healthy);                     ///< the same, of the channel that remembers longest
Difference beta_scaled(const Solved& healthy);  ///< for a small share

// States.
Difference initial_state_in_bf16(const Solved& healthy);
Difference carried_state_itself(const Solved& healthy);  ///< what the state after the first chunk contributes

// Rows of o.
Difference last_row_stale(const Solved& healthy);       ///< that of the token before
Difference output_of_last_head(const Solved& healthy);  ///< in the first

/// Where a fault is: of those of one head in the longest sequence, unless it says all. States have heads,
/// rows and columns only. Of a problem with one head, or one chunk, there is no such part, and nothing is
/// wrong.
enum class Where : std::uint8_t {
  everywhere,
  head,       ///< the last value head, of all sequences
  chunk,      ///< in the middle, of the first head
  window,     ///< of 8 tokens, of the first head
  last_rows,  ///< of every full chunk, all heads
  ragged,     ///< the last chunk of every sequence if it is not full, all heads
  row,        ///< a token, or a channel of the key, of the first head
  column,     ///< of the first head, of all sequences
  tile,       ///< 16 x 16, of the first head
  element,
};

/// What is left of a difference outside of some place: nothing.
void keep_only(Where where, const Solved& healthy, Difference& difference);

}  // namespace kda_check::selftest

// Calls on pools of states for tests, and recorded answers to them.
#pragma once

#include <cstring>
#include <utility>

#include "kda/pool/pool.hpp"
#include "support/problems.hpp"

namespace kda_check::test {

/// Requests that end within a chunk, from zero.
inline ProblemSpec three_rows() {
  ProblemSpec spec;
  spec.B = 3, spec.T = 21, spec.H = 1, spec.HV = 2, spec.K = 8, spec.V = 8, spec.chunk_size = 16;
  spec.initial_state = false;
  return spec;
}

/// A call of these tokens on a pool of random states.
inline kda::PoolCall make_call(ProblemSpec spec, kda::SlotTable table, std::size_t slots,
                               numeric::DType dtype = numeric::DType::fp32) {
  spec.initial_state = false;
  ProblemSpec drawn = spec;
  drawn.B = slots, drawn.T = 1, drawn.cu_seqlens.clear(), drawn.initial_state = true;
  tensor::Tensor states = std::move(*make_problem(drawn, 7).initial_state);
  return {make_problem(spec), states.converted_to(dtype), std::move(table)};
}

inline kda::Problem make_pool_problem(const ProblemSpec& spec, kda::SlotTable table, std::size_t slots,
                                      numeric::DType dtype = numeric::DType::fp32) {
  return kda::ordinary_form(make_call(spec, std::move(table), slots, dtype));
}

/// What `recurrent` answers to the call: o and state_pool.
inline kda::Tensors pool_answer(const kda::Problem& problem) {
  return kda::of_call(*problem.pool, kda::by_name(run(problem, "recurrent", problem.dtype())));
}

/// Eight sequences: two rows of padding, three single tokens, drafts of 1 to 4 tokens.
inline ProblemSpec draft_spec() {
  ProblemSpec spec;
  spec.H = 2, spec.HV = 4, spec.T = 13, spec.cu_seqlens = {0, 1, 2, 5, 6, 10, 11, 13};
  return spec;
}
inline kda::SlotTable draft_table() {
  return {
      {9, 11, 3, 4, -1, -1, -1, -1, 2, 5, 6, 7, 12, 8, 13, 14, 0, 1, 10, 15, -1, 0, -1, -1, 19, 18, 17, 16},
      4,
      {1, 1, 2, 4, 3, 1, 1},
      kda::PaddingSlots::negative};
}

}  // namespace kda_check::test

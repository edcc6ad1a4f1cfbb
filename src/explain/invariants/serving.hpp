// A server that answers the sequences of a problem as requests, with their states in slots of a pool: calls
// of a few requests at a time, of which a kernel must give what it gives to the problem as a whole. What the
// laws of the life of a state are tried with (docs/serving.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "explain/invariants/invariants.hpp"
#include "kda/pool/pool.hpp"

namespace kda_check::explain {

/// How requests are served. Of itself: each alone in the slot of its own number, whole in one call.
struct Service {
  std::uint64_t seed = 1;
  bool in_parts = false;    ///< prefill in calls of a few tokens
  std::size_t decoded = 0;  ///< the last tokens of a request, at most so many, one a call
  std::size_t drafted = 0;  ///< ... or as drafts, of which some are not accepted
  bool prefix_hit = false;  ///< what follows a prefix is answered a second time, from the state that was kept
  bool other_slots = false;   ///< of a larger pool, in no order
  bool in_any_order = false;  ///< requests come and go, in slots that others had before
  kda::PaddingSlots padding = kda::PaddingSlots::none;  ///< rows of it between the others, unless none
  bool empty_rows = false;                              ///< rows without tokens between the others
  bool flags = false;                                   ///< calls have has_initial_state
  bool new_rows = false;  ///< every other request from zero is told so, and its slot holds what was there

  /// All of it but prefix hits: drafts or single tokens, the kind of padding and empty rows by the seed.
  static Service whole(std::uint64_t seed);
  /// Tokens at the end of a request that are not prefilled, at most.
  std::size_t generated() const;
};

/// What came of it, in the places of the problem.
struct Served {
  tensor::Tensor o, final_state;
  /// Slots that a call had no business with, when one was changed for the first time: after and before it.
  std::optional<tensor::Tensor> changed_slots, kept_slots;
  std::size_t single_steps = 0;  ///< rows of one token behind two or more that were accepted
};

/// The requests with states that are said, zeros where there are none, and no loss.
kda::Problem as_requests(const kda::Problem& problem, numeric::DType states);

/// `expected`: what the subject yields on the requests.
Served served(const kda::Problem& requests, const kda::Tensors& expected, const Subject& subject,
              const Service& service);

/// The laws, rows of `run --invariants`.
std::span<const Invariant> laws_of_life();
/// Those of calls behind rings.
std::span<const Invariant> laws_of_rings();

}  // namespace kda_check::explain

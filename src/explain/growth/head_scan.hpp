// One head of one sequence, chunk by chunk, as the chunk form reads it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "explain/growth/decay_rate.hpp"
#include "explain/growth/exponent_range.hpp"
#include "explain/growth/inverse_growth.hpp"
#include "kda/problem/problem.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::explain {

/// Something that leaves no way to a finite answer: a non-finite input, an infinite decay, a gate that grows.
struct CommonFailure {
  std::string what;
  Place place;
};

struct HeadFindings {
  std::optional<CommonFailure> chunk_forms, token_forms;  ///< the first one of each
  std::vector<ExponentRange> ranges;                      ///< by form
  InverseGrowth growth;
  /// By block_sides: where a run with inverse=doubling overflows. In fp64 not followed.
  std::array<std::optional<Place>, 3> divergence;
  DecayRate decay_rate;
};

/// `forms`: the decay forms to follow. Throws nothing but std::bad_alloc.
HeadFindings scan_head(const kda::Problem& problem, const kda::Sequence& sequence, std::size_t head,
                       const kda::RunOptions& options, const std::vector<kda::Arithmetic>& forms);

}  // namespace kda_check::explain

// The usual mis-readings of KDA, one row each: what kernels, ports and fixtures have got wrong before
// (docs/probe.md). To add one, add a row.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "explain/probe/interpretation.hpp"

namespace kda_check::explain {

struct Convention {
  std::string_view name;
  std::string_view meaning;  ///< goes on after "matches if"
  /// False where it would change nothing, or means nothing.
  bool (*applies)(const kda::Problem& problem);
  /// Turns the right reading into this one. `token` is for rows that are about one token.
  void (*misread)(Interpretation& reading, std::size_t token);
  bool of_one_token = false;
};

std::span<const Convention> conventions();

}  // namespace kda_check::explain

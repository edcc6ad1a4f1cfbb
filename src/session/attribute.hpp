// `attribute`: how much of an error each axis of the arithmetic makes, and in which stage it is born.
#pragma once

#include <string>
#include <vector>

#include "report/attribution.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

struct AttributeRequest {
  std::vector<std::string> targets;
  std::vector<std::string> variants;    ///< empty: all
  std::vector<std::string> dtypes;      ///< empty: the fixture's
  std::vector<std::string> arithmetic;  ///< key=value and presets
  /// Two answers instead of one against the oracle: variants, variant+preset, or recorded groups.
  std::vector<std::string> between;
  std::vector<std::string> tensors;  ///< of either pass; empty: all of the forward one, or
  bool backward = false;             ///< all of the backward one
  std::optional<std::size_t> chunk_size;
  fixture::ReadLimits limits;
  int threads = 1;
  std::span<const kda::Variant> registry = kda::variants();  ///< where names of variants are looked up
};

/// Throws Error{usage} when the request names something that does not exist. A target that cannot be read
/// becomes an entry of the errors, and the others go on.
report::AttributionResult attribute(const AttributeRequest& request, const Log& log);

}  // namespace kda_check::session

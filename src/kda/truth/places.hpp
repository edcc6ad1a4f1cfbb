// What the oracle hands out by its places in whole tensors.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "kda/truth/oracle.hpp"

namespace kda_check::kda {

/// Elements [first, first + count) of o or of a tensor of states, as a problem of the heads asked for has
/// them.
struct OraclePart {
  std::string_view tensor;
  std::size_t first, count;
  const double *hi, *lo, *magnitude;
};
using TakePart = std::function<void(const OraclePart&)>;

/// Of a problem of these dimensions. What is empty takes nothing.
inline OracleSink by_places(const Dimensions& d, TakePart o, TakePart states, const HeadRange& heads = {}) {
  const std::size_t first = std::min(heads.first, d.HV), count = std::min(heads.last, d.HV) - first;
  OracleSink sink;
  if (o)
    sink.output = [o = std::move(o), T = d.T, row = count * d.V](const OracleOutput& part) {
      o({"o", (part.batch * T + part.begin) * row, part.count * row, part.hi, part.lo, part.magnitude});
    };
  if (states)
    sink.state = [states = std::move(states), first, count, size = d.K * d.V](const OracleState& part) {
      const std::size_t head = part.row * count + part.head - first;
      states({part.tensor, head * size, size, part.hi, part.lo, part.magnitude});
    };
  return sink;
}

}  // namespace kda_check::kda

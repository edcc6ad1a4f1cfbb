// What the readers and writers of JSON share.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace kda_check::report {

using Json = nlohmann::ordered_json;

inline constexpr int schema_version = 2;

/// A number that is not finite is a string: JSON has no word for it.
inline Json json_number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

}  // namespace kda_check::report

// What the JSON writers share.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "report/result.hpp"
#include "report/version.hpp"

namespace kda_check::report {

using Json = nlohmann::ordered_json;

/// A number that is not finite is a string: JSON has no word for it.
inline Json json_number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

inline Json json_tool() { return {{"name", "kda-check"}, {"version", version}}; }

inline Json json_fixtures(const std::vector<FixtureResult>& fixtures) {
  Json list = Json::array();
  for (const FixtureResult& item : fixtures)
    list.push_back({{"name", item.name},
                    {"path", item.path},
                    {"shape", item.shape},
                    {"options", item.options},
                    {"notes", item.notes}});
  return list;
}

inline Json json_errors(const std::vector<FailedInput>& errors) {
  Json list = Json::array();
  for (const FailedInput& item : errors)
    list.push_back({{"message", item.message}, {"exit_code", item.exit_code}});
  return list;
}

/// Strings come from files: bytes that are no UTF-8 are replaced rather than refused.
inline std::string json_text(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kda_check::report

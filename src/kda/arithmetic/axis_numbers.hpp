// Numbers behind the colon of a word of --arithmetic: which there may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kda_check::kda {

/// What follows the colon of a name.
enum class Number : std::uint8_t { none, rows, few_rows, width, bits, exponent, parts };

/// The name with every number it may have, or with what stands for one.
std::vector<std::string> examples_of(std::string_view name, Number number);

/// The number behind the colon at `colon` of `value`, checked; `fallback` without one.
double number_of(Number kind, std::string_view key, std::string_view value, std::size_t colon,
                 double fallback);

/// Throws Error{usage} for "key=value".
[[noreturn]] void refuse_value(std::string_view key, std::string_view value, const std::string& why,
                               const std::string& hint = {});

}  // namespace kda_check::kda

// Lists of the values of an axis and their names, read both ways.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/names.hpp"
#include "kda/arithmetic/axis_numbers.hpp"

namespace kda_check::kda {

template <class Value>
struct ValueName {
  Value value;
  std::string_view name;
  Number number = Number::none;
};

template <class Value, std::size_t count>
std::string_view name_in(const ValueName<Value> (&list)[count], Value value) {
  for (const auto& row : list)
    if (row.value == value) return row.name;
  return "?";
}

template <class Value, std::size_t count>
std::vector<std::string> names_in(const ValueName<Value> (&list)[count]) {
  std::vector<std::string> names;
  for (const auto& row : list)
    for (std::string& name : examples_of(row.name, row.number)) names.push_back(std::move(name));
  return names;
}

/// "anchor-mid:16": what stands before the colon, and where that is.
struct SplitWord {
  std::string_view name;
  std::size_t colon;
};
constexpr SplitWord split_word(std::string_view value) {
  return {value.substr(0, value.find(':')), value.find(':')};
}

template <class Value, std::size_t count>
const ValueName<Value>& find_in(const ValueName<Value> (&list)[count], std::string_view key,
                                std::string_view value) {
  for (const auto& row : list)
    if (row.name == split_word(value).name) return row;
  refuse_value(key, value, fmt::format("no such {}", key), suggest(value, names_in(list)));
}

/// The value of an axis without numbers.
template <class Value, std::size_t count>
Value plain(const ValueName<Value> (&list)[count], std::string_view key, std::string_view value) {
  const auto& row = find_in(list, key, value);
  number_of(row.number, key, value, split_word(value).colon, 0);
  return row.value;
}

template <class Value, std::size_t count>
std::string numbered(const ValueName<Value> (&list)[count], Value value, double number) {
  for (const auto& row : list)
    if (row.value == value)
      return row.number == Number::none ? std::string(row.name) : fmt::format("{}:{}", row.name, number);
  return "?";
}

}  // namespace kda_check::kda

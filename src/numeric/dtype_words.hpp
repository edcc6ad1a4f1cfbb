// What people call element types.
#pragma once

#include <optional>
#include <string_view>

#include "numeric/formats.hpp"

namespace kda_check::numeric {

/// "bf16"; also the names of other tools: "bfloat16", "torch.bfloat16", "half", "float32". nullopt: no such
/// type.
constexpr std::optional<DType> dtype_of_word(std::string_view word) {
  struct Row {
    std::string_view word;
    DType dtype;
  };
  constexpr Row rows[] = {
      {"float64", DType::fp64}, {"double", DType::fp64}, {"f64", DType::fp64},      {"float32", DType::fp32},
      {"float", DType::fp32},   {"f32", DType::fp32},    {"bfloat16", DType::bf16}, {"float16", DType::fp16},
      {"half", DType::fp16},    {"f16", DType::fp16},
  };
  for (const std::string_view prefix : {"torch.", "jnp.", "np."})
    if (word.starts_with(prefix)) {
      word.remove_prefix(prefix.size());
      break;
    }
  if (const auto dtype = dtype_named(word)) return dtype;
  for (const Row& row : rows)
    if (row.word == word) return row.dtype;
  return std::nullopt;
}

}  // namespace kda_check::numeric

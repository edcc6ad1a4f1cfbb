// The element types of the tensors, one row each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "numeric/strict.hpp"

namespace kda_check::numeric {

enum class DType : std::uint8_t { fp64, fp32, bf16, fp16 };

struct Format {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
  int precision;     ///< p: bits of the significand, the hidden one included
  int min_exponent;  ///< emin: exponent of the smallest normal number, 2^emin
  int max_exponent;  ///< emax: the largest finite number is (2 - 2^(1-p)) * 2^emax

  /// Unit roundoff 2^-p: the largest relative error of one rounding to nearest.
  constexpr double unit_roundoff() const {
    double u = 1;
    for (int bit = 0; bit < precision; ++bit) u /= 2;
    return u;
  }
  /// 2^emin, and the step between the numbers below it, 2^(emin - p + 1): the smallest number there is.
  constexpr double smallest_normal() const {
    double power = 1;
    for (int exponent = min_exponent; exponent < 0; ++exponent) power /= 2;
    return power;
  }
  constexpr double smallest_step() const { return smallest_normal() * (2 * unit_roundoff()); }
  /// The largest finite number.
  constexpr double largest() const {
    double number = 2 - 2 * unit_roundoff();
    for (int exponent = 0; exponent < max_exponent; ++exponent) number *= 2;
    return number;
  }
};

/// IEEE 754-2019 table 3.5; bfloat16 has the exponent of fp32 and 8 bits of significand.
inline constexpr std::array formats{
    Format{DType::fp64, "fp64", 8, 53, -1022, 1023},
    Format{DType::fp32, "fp32", 4, 24, -126, 127},
    Format{DType::bf16, "bf16", 2, 8, -126, 127},
    Format{DType::fp16, "fp16", 2, 11, -14, 15},
};

constexpr const Format& format_of(DType dtype) { return formats[static_cast<std::size_t>(dtype)]; }
constexpr std::string_view name_of(DType dtype) { return format_of(dtype).name; }

constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const Format& format : formats)
    if (format.name == name) return format.dtype;
  return std::nullopt;
}

/// The precision of the operands of an implementation's matrix products (accumulation is fp32 below fp64):
/// what its error is judged by. TF32 exists only there.
enum class ComputeFormat : std::uint8_t { fp64, fp32, tf32, bf16, fp16 };

struct ComputeRow {
  ComputeFormat format;
  std::string_view name;
  int precision;
  double operand_error;  ///< largest relative error of one operand: 2^-p rounded, 2^(1-p) truncated (tf32)
};
inline constexpr std::array compute_formats{
    ComputeRow{ComputeFormat::fp64, "fp64", 53, 0x1p-53},
    ComputeRow{ComputeFormat::fp32, "fp32", 24, 0x1p-24},
    ComputeRow{ComputeFormat::tf32, "tf32", 11, 0x1p-10},
    ComputeRow{ComputeFormat::bf16, "bf16", 8, 0x1p-8},
    ComputeRow{ComputeFormat::fp16, "fp16", 11, 0x1p-11},
};
constexpr const ComputeRow& row_of(ComputeFormat format) {
  return compute_formats[static_cast<std::size_t>(format)];
}
constexpr std::optional<ComputeFormat> compute_named(std::string_view name) {
  for (const ComputeRow& row : compute_formats)
    if (row.name == name) return row.format;
  return std::nullopt;
}
constexpr ComputeFormat compute_of(DType dtype) {
  switch (dtype) {
    case DType::fp64:
      return ComputeFormat::fp64;
    case DType::fp32:
      return ComputeFormat::fp32;
    case DType::bf16:
      return ComputeFormat::bf16;
    case DType::fp16:
      break;
  }
  return ComputeFormat::fp16;
}

/// An element type with the exponents of these operands.
constexpr DType range_of(ComputeFormat format) {
  if (format == ComputeFormat::fp64) return DType::fp64;
  return format == ComputeFormat::fp16 ? DType::fp16 : DType::fp32;
}

// Storage types: what one element of a tensor is in memory.
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

template <class Storage>
struct StorageTraits;
template <>
struct StorageTraits<double> {
  static constexpr DType dtype = DType::fp64;
  using Bits = std::uint64_t;
};
template <>
struct StorageTraits<float> {
  static constexpr DType dtype = DType::fp32;
  using Bits = std::uint32_t;
};
template <>
struct StorageTraits<Bfloat16> {
  static constexpr DType dtype = DType::bf16;
  using Bits = std::uint16_t;
};
template <>
struct StorageTraits<Float16> {
  static constexpr DType dtype = DType::fp16;
  using Bits = std::uint16_t;
};

template <class Storage>
inline constexpr const Format& format_for = format_of(StorageTraits<Storage>::dtype);

template <class Storage>
using BitsOf = typename StorageTraits<Storage>::Bits;

/// Calls visit(Storage{}) with the storage type of `dtype` and returns its result.
template <class Visitor>
constexpr decltype(auto) visit_storage(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::fp64:
      return std::forward<Visitor>(visit)(double{});
    case DType::fp32:
      return std::forward<Visitor>(visit)(float{});
    case DType::bf16:
      return std::forward<Visitor>(visit)(Bfloat16{});
    case DType::fp16:
      break;
  }
  return std::forward<Visitor>(visit)(Float16{});
}

}  // namespace kda_check::numeric

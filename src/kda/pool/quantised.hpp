// A quantised pool: states as codes of 8 or 16 bits, each times the scale of its block (docs/serving.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tensor/tensor.hpp"

namespace kda_check::kda {

struct PoolCall;
struct PoolPiece;

enum class CodeFormat : std::uint8_t { int8, int16, e4m3 };
inline constexpr CodeFormat every_code_format[] = {CodeFormat::int8, CodeFormat::int16, CodeFormat::e4m3};
std::string_view name_of(CodeFormat format);
double largest_code(CodeFormat format);

/// A code of e4m3 (OCP's: without infinities) as a number of fp32, exactly, and back; tensors hold codes so.
float e4m3_number(std::uint8_t bits);
std::uint8_t e4m3_bits(float number);

/// How states become codes, or numbers of 16 bits.
enum class CodeRounding : std::uint8_t { nearest, stochastic };
inline constexpr CodeRounding every_code_rounding[] = {CodeRounding::nearest, CodeRounding::stochastic};
std::string_view name_of(CodeRounding rounding);

/// How the states of a pool become codes.
struct Quantisation {
  CodeFormat format = CodeFormat::int8;
  double largest = 127;  ///< a scale is the largest magnitude of its block over this; 0: scales are fixed

  bool is_fixed() const { return largest == 0; }
  bool operator==(const Quantisation&) const = default;
};

/// Throws Error{input} unless each extent of the scale, behind slots and heads, divides that of the pool:
/// rows, columns, heads and tiles share one.
void check_scale(const tensor::Shape& pool, const tensor::Shape& scale);

/// Code times scale, exactly.
tensor::Tensor dequantised(const tensor::Tensor& codes, const tensor::Tensor& scale);
/// In what order the elements of a state have the scales of its slot.
std::vector<std::size_t> blocks_of(const tensor::Shape& pool, const tensor::Shape& scale);

/// The scale of a pool after these states were stored: what it was, but of the slots of pieces.
tensor::Tensor right_scale(const PoolCall& call, const std::vector<PoolPiece>& pieces,
                           const tensor::Tensor& states);

/// What a kernel does otherwise, where it is wrong.
struct Quantiser {
  bool truncates = false;
  std::function<double(std::size_t at, double right)> scale = {};  ///< element `at` of the pool's
};
/// All of a pool after these states were stored: to nearest, ties to even, or by draws of Philox, whose
/// counter is the place of an element in the pool.
struct QuantisedPool {
  tensor::Tensor codes, scale;
};
QuantisedPool quantised(const PoolCall& call, const std::vector<PoolPiece>& pieces,
                        const tensor::Tensor& states, const Quantiser& quantiser = {});

/// The same of a pool in another element type: these states in it, one after the other.
tensor::Tensor as_stored(const PoolCall& call, const std::vector<PoolPiece>& pieces,
                         const tensor::Tensor& states);

/// Half a step of a format at that magnitude, in units of the scale.
double half_step(CodeFormat format, double magnitude);
/// Of states that were stored as codes, in fp64: what rounding them rightly may have moved is taken off, so
/// that what is left is the error of the computation, and of a wrong rounding.
void allow_rounding(const PoolCall& call, tensor::Tensor& states, const tensor::Tensor& right);

/// How a pool was not rounded by lot, where it had to be: "codes are rounded towards zero ..."; else empty.
/// `error`: what its states may err by, rms.
std::string not_by_lot(const PoolCall& call, const tensor::Tensor& pool, const tensor::Tensor& right,
                       double error);

}  // namespace kda_check::kda

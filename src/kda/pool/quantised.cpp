#include "kda/pool/quantised.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "kda/pool/pool.hpp"
#include "numeric/stored_formats.hpp"

namespace kda_check::kda {

namespace {

using numeric::DType;
using tensor::Tensor;

/// In the order of CodeFormat.
constexpr numeric::StoredFormat code_formats[] = {
    {"int8", 8, 8, 7, 127, true}, {"int16", 16, 16, 15, 32767, true}, {"e4m3", 8, 4, -6, 448, true}};
const numeric::StoredFormat& row_of(CodeFormat format) {
  return code_formats[static_cast<std::size_t>(format)];
}

float code_of(CodeFormat format, double quotient, bool truncates) {
  const double magnitude = std::fabs(quotient);
  if (!(magnitude <= std::numeric_limits<double>::max()))  // integers have no NaN
    return format == CodeFormat::e4m3 ? std::numeric_limits<float>::quiet_NaN() : 0;
  const double number = truncates ? numeric::on_grid<true>(row_of(format), magnitude, 1)
                                  : numeric::on_grid<false>(row_of(format), magnitude, 0);
  const auto code = static_cast<float>(std::copysign(number, quotient));
  return format == CodeFormat::e4m3 ? code : code + 0.0F;  // nor -0
}

std::size_t blocks_in(const Tensor& scale) { return scale.size() / scale.shape()[0]; }

}  // namespace

std::string_view name_of(CodeFormat format) { return row_of(format).name; }
double largest_code(CodeFormat format) { return row_of(format).largest; }

float e4m3_number(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float number = (exponent > 0 ? 8.0F : 0.0F) + static_cast<float>(mantissa);
  number *= __builtin_bit_cast(float, (std::max(exponent, 1) - 10 + 127) << 23);
  if ((bits & 0x7f) == 0x7f) number = std::numeric_limits<float>::quiet_NaN();
  return std::copysign(number, bits < 0x80 ? 1.0F : -1.0F);
}

std::uint8_t e4m3_bits(float number) {
  const auto bits = __builtin_bit_cast(std::uint32_t, number), magnitude = bits & 0x7fff'ffff;
  const std::uint32_t sign = bits >> 31 << 7;
  if (number != number) return static_cast<std::uint8_t>(sign | 0x7f);
  if (magnitude < 0x3c80'0000)  // 2^-6, below which steps are 2^-9
    return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>(std::fabs(number) * 0x1p9F));
  return static_cast<std::uint8_t>(sign | ((magnitude >> 20) - (120 << 3)));
}

void check_scale(const tensor::Shape& pool, const tensor::Shape& scale) {
  bool fits = scale.size() == pool.size();
  for (std::size_t axis = 0; axis < pool.size() && fits; ++axis)
    fits = axis < 2 ? scale[axis] == pool[axis] : scale[axis] > 0 && pool[axis] % scale[axis] == 0;
  if (!fits)
    throw Error(
        ErrorKind::input,
        fmt::format("inputs/state_scale is {} but inputs/state_pool is {}; wanted its slots and heads, "
                    "and two extents that divide its others",
                    tensor::to_string(scale), tensor::to_string(pool)),
        {}, "[slots,HV,K,1]: one for each row; [slots,HV,1,1]: one for each head");
}

std::vector<std::size_t> blocks_of(const tensor::Shape& pool, const tensor::Shape& scale) {
  std::vector<std::size_t> blocks;
  for (std::size_t h = 0; h < pool[1]; ++h)
    for (std::size_t i = 0; i < pool[2]; ++i)
      for (std::size_t j = 0; j < pool[3]; ++j)
        blocks.push_back((h * scale[2] + i / (pool[2] / scale[2])) * scale[3] + j / (pool[3] / scale[3]));
  return blocks;
}

Tensor dequantised(const Tensor& codes, const Tensor& scale) {
  Tensor states(codes.name(), DType::fp64, codes.shape());
  const std::vector<std::size_t> blocks = blocks_of(codes.shape(), scale.shape());
  const std::size_t per_slot = blocks_in(scale);
  for (std::size_t slot = 0, at = 0; slot < codes.shape()[0]; ++slot)
    for (const std::size_t block : blocks) {
      states.set(at, codes.value(at) * scale.value(slot * per_slot + block));
      ++at;
    }
  return states;
}

Tensor right_scale(const PoolCall& call, const std::vector<PoolPiece>& pieces, const Tensor& states) {
  Tensor scale = call.scale.clone();
  const double largest = call.table.quantisation->largest;
  if (largest == 0) return scale;  // it is fixed
  const std::vector<std::size_t> blocks = blocks_of(call.codes.shape(), scale.shape());
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].to >= call.slots()) continue;
    std::vector<double> most(blocks_in(scale));
    for (std::size_t i = 0; i < blocks.size(); ++i)
      most[blocks[i]] = std::max(most[blocks[i]], std::fabs(states.value(p * blocks.size() + i)));
    for (std::size_t b = 0; b < most.size(); ++b)
      scale.set(pieces[p].to * most.size() + b, most[b] / largest);
  }
  return scale;
}

QuantisedPool quantised(const PoolCall& call, const std::vector<PoolPiece>& pieces, const Tensor& states,
                        const Quantiser& quantiser) {
  QuantisedPool pool{call.codes.clone(), right_scale(call, pieces, states)};
  const std::vector<std::size_t> blocks = blocks_of(call.codes.shape(), call.scale.shape());
  const std::size_t per_slot = blocks_in(call.scale), size = blocks.size();
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::size_t to = pieces[p].to;
    if (to >= call.slots()) continue;
    for (std::size_t at = to * per_slot; at < (to + 1) * per_slot && quantiser.scale; ++at)
      pool.scale.set(at, quantiser.scale(at, pool.scale.value(at)));
    for (std::size_t i = 0; i < size; ++i) {
      const double scale = pool.scale.value(to * per_slot + blocks[i]),
                   quotient = scale == 0 ? 0 : states.value(p * size + i) / scale;
      pool.codes.set(to * size + i, code_of(call.table.quantisation->format, quotient, quantiser.truncates));
    }
  }
  return pool;
}

double half_step(CodeFormat format, double magnitude) {
  const numeric::StoredFormat& row = row_of(format);
  const auto field = static_cast<std::int64_t>(__builtin_bit_cast(std::uint64_t, magnitude) >> 52);
  return __builtin_bit_cast(double, (std::max<std::int64_t>(field, row.min_exponent + 1023) - row.precision)
                                        << 52);
}

void allow_half_a_step(const PoolCall& call, Tensor& states, const Tensor& right) {
  constexpr double also = 1 + 0x1p-20;  // of a scale, or a quotient by it, that is rounded otherwise
  const CodeFormat format = call.table.quantisation->format;
  const Tensor scales = right_scale(call, call.pieces, right);
  const std::vector<std::size_t> blocks = blocks_of(call.codes.shape(), call.scale.shape());
  for (std::size_t p = 0, at = 0; p < call.pieces.size(); ++p)
    for (std::size_t i = 0; i < blocks.size(); ++i, ++at) {
      if (!call.pieces[p].is_stored()) continue;
      const double scale = std::fabs(scales.value(call.pieces[p].to * blocks_in(scales) + blocks[i]));
      if (!std::isfinite(scale)) continue;
      const double x = right.value(at), most = largest_code(format) * scale,
                   target = std::clamp(x, -most, most), off = states.value(at) - target,
                   half = scale > 0 ? half_step(format, std::fabs(target) / scale) * scale * also : 0;
      states.set(at, std::fabs(off) <= half ? x : x + (off - std::copysign(half, off)));
    }
}

}  // namespace kda_check::kda

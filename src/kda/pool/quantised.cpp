#include "kda/pool/quantised.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "kda/pool/pool.hpp"
#include "kda/problem/shapes.hpp"
#include "numeric/philox.hpp"
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

/// What the states of a pool are rounded to.
const numeric::StoredFormat& format_of(const PoolCall& call) {
  if (call.is_quantised()) return row_of(call.table.quantisation->format);
  return numeric::stored_formats[call.states.dtype() == DType::bf16 ? 1 : 2];
}

/// Integers have steps of one everywhere, no NaN and no -0.
bool is_integer(const numeric::StoredFormat& format) { return format.min_exponent >= format.precision - 1; }

/// Of element `at` of a pool, in [0, 1): 24 bits, as vLLM's kernels take them.
double draw_of(const SlotTable& table, std::size_t at) {
  return static_cast<double>(numeric::philox(table.seed.value_or(0), at) & 0xff'ffff) * 0x1p-24;
}

/// Integers become floor(x + draw); of others the magnitude is rounded up where more is left over.
double by_lot(const numeric::StoredFormat& format, double x, double draw) {
  return is_integer(format) ? std::clamp(std::floor(x + draw), -format.largest, format.largest)
                            : std::copysign(numeric::on_grid<true>(format, std::fabs(x), draw), x);
}

float code_of(const SlotTable& table, double quotient, bool truncates, std::size_t at) {
  const CodeFormat format = table.quantisation->format;
  const double magnitude = std::fabs(quotient);
  if (!(magnitude <= std::numeric_limits<double>::max()))
    return format == CodeFormat::e4m3 ? std::numeric_limits<float>::quiet_NaN() : 0;
  const double number = truncates ? numeric::on_grid<true>(row_of(format), magnitude, 1)
                                  : numeric::on_grid<false>(row_of(format), magnitude, 0);
  const auto code =
      static_cast<float>(table.is_drawn() && !truncates ? by_lot(row_of(format), quotient, draw_of(table, at))
                                                        : std::copysign(number, quotient));
  return is_integer(row_of(format)) ? code + 0.0F : code;
}

std::size_t blocks_in(const Tensor& scale) { return scale.size() / scale.shape()[0]; }

/// Half a step of a format at that magnitude.
double half_step(const numeric::StoredFormat& row, double magnitude) {
  const auto field = static_cast<std::int64_t>(__builtin_bit_cast(std::uint64_t, magnitude) >> 52);
  return __builtin_bit_cast(double, (std::max<std::int64_t>(field, row.min_exponent + 1023) - row.precision)
                                        << 52);
}

/// A state that was stored, and its number in the pool.
struct StoredElement {
  std::size_t number, in_pool;
  double scale;
};
template <class Body>
void each_stored(const PoolCall& call, const Tensor& right, Body body) {
  const Tensor scales = call.is_quantised() ? right_scale(call, call.pieces, right) : Tensor();
  const std::vector<std::size_t> blocks =
      call.is_quantised() ? blocks_of(call.codes.shape(), scales.shape()) : std::vector<std::size_t>();
  const std::size_t size = right.size() / call.pieces.size();
  for (std::size_t p = 0; p < call.pieces.size(); ++p)
    for (std::size_t i = 0, to = call.pieces[p].to; i < size && call.pieces[p].is_stored(); ++i) {
      const double scale =
          call.is_quantised() ? std::fabs(scales.value(to * blocks_in(scales) + blocks[i])) : 1;
      if (std::isfinite(scale)) body(StoredElement{p * size + i, to * size + i, scale});
    }
}

/// What is left of a step by draws, beside what is to be left.
class Draws {
 public:
  /// Of a number that is `fraction` of a step above the one below, and was stored as `stored` of them above;
  /// `off`: what the number itself may be off by, `sign`: its own.
  void add(double fraction, double stored, double off, double sign) {
    constexpr double of_eight_bits = 0x1p-8;  // what a draw may be off by
    const double lost = stored - fraction, middle = fraction - 0.5, variance = fraction * (1 - fraction);
    ++count_, outwards_ += lost, up_ += sign * lost, nearer_ += lost * middle;
    variance_ += variance, variance_near_ += variance * middle * middle;
    off_ += off + of_eight_bits;
  }
  std::string fault() const {
    const double most = most_of(variance_) + off_, most_near = most_of(variance_near_) + off_ / 2;
    const auto said = [&](const char* how, double sum) {
      return fmt::format(
          "rounded {}, by {:.3g} of a step on average of {}; stochastic rounding: at most {:.2g}", how,
          std::fabs(sum) / static_cast<double>(count_), count_, most / static_cast<double>(count_));
    };
    if (std::fabs(outwards_) > most)
      return said(outwards_ < 0 ? "towards zero" : "away from zero", outwards_);
    if (std::fabs(up_) > most) return said(up_ < 0 ? "down" : "up", up_);
    if (nearer_ > most_near)
      return fmt::format("rounded to nearest more often than stochastic rounding does, of {}", count_);
    if (nearer_ < -most_near)
      return fmt::format("rounded to nearest less often than stochastic rounding does, of {}", count_);
    return {};
  }

 private:
  /// Independent sums of mean 0 exceed it once in 10^7 (S. Bernstein 1924).
  static double most_of(double variance) {
    constexpr double log_odds = 18;
    return log_odds / 3 + std::sqrt(log_odds * log_odds / 9 + 2 * log_odds * variance);
  }
  std::size_t count_ = 0;
  double outwards_ = 0, up_ = 0, nearer_ = 0, variance_ = 0, variance_near_ = 0, off_ = 0;
};

}  // namespace

std::string_view name_of(CodeRounding rounding) {
  return rounding == CodeRounding::nearest ? "nearest" : "stochastic";
}
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
      pool.codes.set(to * size + i, code_of(call.table, quotient, quantiser.truncates, to * size + i));
    }
  }
  return pool;
}

double half_step(CodeFormat format, double magnitude) { return half_step(row_of(format), magnitude); }

Tensor as_stored(const PoolCall& call, const std::vector<PoolPiece>& pieces, const Tensor& states) {
  Tensor stored = states.converted_to(call.states.dtype());
  const std::size_t size = states.size() / std::max<std::size_t>(1, pieces.size());
  for (std::size_t p = 0; p < pieces.size() && call.table.is_drawn(); ++p)
    for (std::size_t i = p * size; i < (p + 1) * size && pieces[p].to < call.slots(); ++i)
      if (std::isfinite(states.value(i)))
        stored.set(i, by_lot(format_of(call), states.value(i),
                             draw_of(call.table, pieces[p].to * size + i - p * size)));
  return stored;
}

void allow_rounding(const PoolCall& call, Tensor& states, const Tensor& right) {
  constexpr double also = 1 + 0x1p-20;  // of a scale, or a quotient by it, that is rounded otherwise
  const numeric::StoredFormat& format = format_of(call);
  const double halves = call.table.is_drawn() ? 2 : 1;
  each_stored(call, right, [&](const StoredElement& one) {
    const double x = right.value(one.number), most = format.largest * one.scale,
                 target = std::clamp(x, -most, most), off = states.value(one.number) - target,
                 allowed = one.scale > 0
                               ? halves * half_step(format, std::fabs(target) / one.scale) * one.scale * also
                               : 0;
    states.set(one.number, std::fabs(off) <= allowed ? x : x + (off - std::copysign(allowed, off)));
  });
}

std::string not_by_lot(const PoolCall& call, const Tensor& pool, const Tensor& right, double error) {
  constexpr double of_one_element = 32, also = 0x1p-22;  // of what all may err by; of rounding the scale
  const numeric::StoredFormat& format = format_of(call);
  Draws draws;
  std::size_t count = 0, wrong = 0, first = 0;
  each_stored(call, right, [&](const StoredElement& one) {
    const double x = right.value(one.number), t = std::fabs(x) / one.scale, code = pool.value(one.in_pool);
    if (!(t < format.largest) || !std::isfinite(code)) return;
    const double sign = x < 0 ? -1 : 1, step = 2 * half_step(format, t), below = std::floor(t / step),
                 fraction = t / step - below, stored = sign * code / step - below,
                 off = 2 * error / (one.scale * step) + also * t / step, most_off = of_one_element * off;
    const double draw = call.table.seed ? draw_of(call.table, one.in_pool) : 0;
    const bool is_right = call.table.seed ? code >= by_lot(format, sign * t - most_off * step, draw) &&
                                                code <= by_lot(format, sign * t + most_off * step, draw)
                                          : stored >= std::floor(fraction - most_off) &&
                                                stored <= std::ceil(fraction + most_off);
    if (!is_right && wrong++ == 0) first = one.in_pool;
    ++count;
    draws.add(fraction, stored, off, sign);
  });
  const std::string what = call.is_quantised() ? "codes are " : "states are ";
  if (wrong > 0)
    return fmt::format(
        "{}not {}: {} of {}, the first at {}", what,
        call.table.seed ? "those that Philox draws by options/code_seed"
                        : "the neighbours of what is rounded",
        wrong, count,
        place("state_pool", tensor::index_of(pool.shape(), first), call.problem.options.state_v_first));
  const std::string fault = call.table.seed ? std::string() : draws.fault();
  return fault.empty() ? fault : what + fault;
}

}  // namespace kda_check::kda

// A state on its way into the format it is stored in between tokens, and back.
#include <cstring>

#include "kda/kernels/entries.hpp"
#include "numeric/random.hpp"
#include "numeric/stored_formats.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

/// Elements (k, v0 .. v0 + lanes) of the state, side by side in memory.
struct Strip {
  std::size_t k, v, at;
};

template <class Body>
KDA_CHECK_INLINE void each_strip(const StoredStateBlock& block, Body body) {
  for (std::size_t v = 0; v < block.value_dim; v += block.lanes)
    for (std::size_t k = 0; k < block.key_dim; ++k) body(Strip{k, v, (v * block.key_dim) + k * block.lanes});
}

/// x += decay r, r being what the last rounding left.
void take_back(const StoredStateBlock& block) {
  each_strip(block, [&](const Strip& strip) {
    float* const x = block.state + strip.at;
    const float* const left = block.residual + strip.at;
    const float decay = block.decay[strip.k];
    for (std::size_t i = 0; i < block.lanes; ++i) x[i] = x[i] + decay * left[i];
  });
}

/// The least scale that is used: so that none is 0.
constexpr float least_scale = 0x1p-126F;

/// The scale of a group whose largest magnitude is `most`.
float scale_of(float most, float largest, bool power_of_two) {
  const float quotient = most / largest, scale = quotient < least_scale ? least_scale : quotient;
  if (!power_of_two || !(scale <= 0x1p127F)) return scale;
  return __builtin_bit_cast(float, (__builtin_bit_cast(std::uint32_t, scale) + 0x007fffffu) & 0xff800000u);
}

/// The larger magnitude by its bits: NaN is larger than all numbers, and the order of comparisons is free.
KDA_CHECK_INLINE float larger(float most, float x) {
  const auto a = __builtin_bit_cast(std::int32_t, most),
             b = __builtin_bit_cast(std::int32_t, x) & 0x7fff'ffff;
  return __builtin_bit_cast(float, a > b ? a : b);
}

/// The group of element (k, v).
KDA_CHECK_INLINE std::size_t group_of(StateScale scale, std::size_t k, std::size_t v) {
  if (scale == StateScale::row) return k;
  return scale == StateScale::column ? v : 0;
}

void find_scales(const StoredStateBlock& block, float largest) {
  const StateScale per = block.stored.scale;
  const std::size_t columns = (block.value_dim + block.lanes - 1) / block.lanes * block.lanes;
  const std::size_t groups = per == StateScale::row ? block.key_dim : per == StateScale::column ? columns : 1;
  for (std::size_t i = 0; i < groups; ++i) block.scales[i] = 0;
  each_strip(block, [&](const Strip& strip) {
    const float* const x = block.state + strip.at;
    if (per == StateScale::column) {
      float* const most = block.scales + strip.v;
      for (std::size_t i = 0; i < block.lanes; ++i) most[i] = larger(most[i], x[i]);
    } else {
      float most = block.scales[group_of(per, strip.k, strip.v)];
      for (std::size_t i = 0; i < block.lanes; ++i) most = larger(most, x[i]);
      block.scales[group_of(per, strip.k, strip.v)] = most;
    }
  });
  for (std::size_t i = 0; i < groups; ++i)
    block.scales[i] = scale_of(block.scales[i], largest, block.stored.power_of_two);
}

template <bool by_lot>
void round_all(const StoredStateBlock& block) {
  const numeric::StoredFormat format = numeric::stored_formats[static_cast<std::size_t>(block.stored.format)];
  const StateScale per = block.stored.scale;
  if (per != StateScale::none) find_scales(block, static_cast<float>(format.largest));
  const numeric::Random random(block.stored.seed, block.stream);
  each_strip(block, [&](const Strip& strip) {
    float* const x = block.state + strip.at;
    const std::uint64_t counter =
        (block.token * block.key_dim + strip.k) * block.value_dim + static_cast<std::uint64_t>(strip.v);
    const float shared = per == StateScale::none     ? 1.0F
                         : per == StateScale::column ? 0.0F
                                                     : block.scales[group_of(per, strip.k, strip.v)];
    const float* const own = per == StateScale::column ? block.scales + strip.v : nullptr;
    for (std::size_t i = 0; i < block.lanes; ++i) {
      const float scale = own != nullptr ? own[i] : shared, scaled = x[i] / scale;
      const double draw = by_lot ? static_cast<double>(random.bits(counter + i) >> 32) * 0x1p-32 : 0;
      const double number =
          numeric::on_grid<by_lot>(format, static_cast<double>(__builtin_fabsf(scaled)), draw);
      x[i] = __builtin_copysignf(static_cast<float>(number), scaled) * scale;
    }
  });
}

}  // namespace

void store_state(const StoredStateBlock& block) {
  if (block.stored.format == StateFormat::fp32) return;
  if (block.stored.rounding == StateRounding::stochastic) return round_all<true>(block);
  if (block.stored.rounding == StateRounding::nearest) return round_all<false>(block);
  take_back(block);
  each_strip(block, [&](const Strip& strip) {
    std::memcpy(block.residual + strip.at, block.state + strip.at, block.lanes * sizeof(float));
  });
  round_all<false>(block);
  each_strip(block, [&](const Strip& strip) {
    float* const left = block.residual + strip.at;
    const float* const x = block.state + strip.at;
    for (std::size_t i = 0; i < block.lanes; ++i) left[i] = left[i] - x[i];
  });
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

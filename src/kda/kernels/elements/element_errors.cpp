// The errors of elements, several at once: the fast form of judge/measures/elements.hpp, which has the
// definitions. Loops have no branches, and all numbers in them 64 bits, so that a compiler does a register of
// elements at a time.
#include <cstdint>

#include "kda/kernels/entries.hpp"
#include "numeric/distance_bins.hpp"
#include "numeric/rounding.hpp"
#include "numeric/ulp.hpp"
#include "numeric/within.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

using numeric::DoubleDouble;

KDA_CHECK_INLINE std::uint64_t bits_of(double x) { return __builtin_bit_cast(std::uint64_t, x); }
KDA_CHECK_INLINE double number_of(std::uint64_t bits) { return __builtin_bit_cast(double, bits); }
KDA_CHECK_INLINE double size_of(double x) { return number_of(bits_of(x) & 0x7fff'ffff'ffff'ffff); }

/// The bits of what is expected, rounded once.
template <class Storage>
KDA_CHECK_INLINE std::uint64_t rounded_bits(DoubleDouble exact) {
  if constexpr (sizeof(Storage) == sizeof(double)) {
    return bits_of(exact.hi);
  } else {
    return numeric::detail::narrow_bits<Storage>(numeric::round_to_odd(exact));
  }
}

/// numeric::exponent_of, but for subnormal numbers, which are below every format's smallest exponent.
KDA_CHECK_INLINE std::int64_t leading_exponent(double x) {
  return static_cast<std::int64_t>(bits_of(x) >> 52 & 0x7ff) - 1023;
}
KDA_CHECK_INLINE std::int64_t leading_exponent(DoubleDouble x) {
  const bool power_of_two = (bits_of(x.hi) & 0x000f'ffff'ffff'ffff) == 0, has_low = x.lo < 0 || x.lo > 0,
             toward_zero = (bits_of(x.hi) ^ bits_of(x.lo)) >> 63 != 0;
  return leading_exponent(x.hi) - (power_of_two & has_low & toward_zero);
}

/// x over the unit in the last place of numbers with this exponent.
template <class Storage>
KDA_CHECK_INLINE double in_units(double x, std::int64_t exponent) {
  constexpr const numeric::Format& format = numeric::format_for<Storage>;
  const std::int64_t least = format.min_exponent, above = exponent > least ? exponent : least;
  const std::int64_t biased = 1023 + format.precision - 1 - above;
  if constexpr (sizeof(Storage) < sizeof(double))
    return x * number_of(static_cast<std::uint64_t>(biased) << 52);
  // The unit may be subnormal: in two steps.
  const std::int64_t first = biased > 2046 ? 52 : 0;
  return x * number_of(static_cast<std::uint64_t>(1023 + first) << 52) *
         number_of(static_cast<std::uint64_t>(biased - first) << 52);
}

template <class Storage, bool has_magnitude>
void errors_of_block(ElementBlock& block) {
  constexpr std::size_t most = elements_at_once;
  constexpr double smallest_step = numeric::format_for<Storage>.smallest_step();
  const std::size_t count = block.count;
  const double* __restrict__ const hi = block.hi;
  const double* __restrict__ const lo = block.lo;
  const double* __restrict__ const magnitude = block.magnitude;
  double value[most], steps[most];
  std::uint64_t stored[most];
  const auto* __restrict__ const got = static_cast<const Storage*>(block.got);
  numeric::BitsOf<Storage> raw[most];
  __builtin_memcpy(raw, got, count * sizeof(Storage));
  for (std::size_t i = 0; i < count; ++i) value[i] = numeric::widen(got[i]);
  for (std::size_t i = 0; i < count; ++i) stored[i] = raw[i];

  // Two loops, as one would need more constants than there are registers.
  constexpr int bits = sizeof(Storage) * 8, distance_bits = bits + 1 < 64 ? bits + 1 : 64;
  std::uint64_t differing = 0, differing_bits = 0, got_bits = 0, expected_bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t rounded = rounded_bits<Storage>({hi[i], lo[i]});
    const std::uint64_t distance = numeric::distance_between(numeric::ordinal_of<Storage>(stored[i]),
                                                             numeric::ordinal_of<Storage>(rounded));
    const std::uint64_t other_sign = (stored[i] ^ rounded) >> (bits - 1);
    differing += distance != 0, differing_bits += (distance | other_sign) != 0;
    got_bits |= stored[i] << (64 - bits) << 1, expected_bits |= bits_of(hi[i]) << 1;
    steps[i] = numeric::double_of<distance_bits>(distance);
    block.bin[i] = numeric::distance_bin<distance_bits>(distance);
  }
  block.differing = differing, block.differing_bits = differing_bits;
  block.got_zero = got_bits == 0, block.expected_zero = expected_bits == 0;

  const double atol = block.atol, rtol = block.rtol;
  const double allowed = atol > 0 || rtol > 0 ? smallest_step / 2 : -1;
  const LargestErrors largest = block.largest;
  std::uint64_t outside = 0, larger = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const DoubleDouble exact{hi[i], lo[i]};
    const DoubleDouble apart = numeric::two_sum(value[i], -exact.hi);
    const double signed_difference = apart.hi + (apart.lo - exact.lo);
    const double difference = size_of(signed_difference), size = size_of(exact.hi);
    block.difference[i] = signed_difference;

    const std::int64_t exponent = leading_exponent(exact);
    const double ulps = in_units<Storage>(difference, exponent);
    double rank = 0;
    if constexpr (has_magnitude) {
      const std::int64_t of_magnitude = leading_exponent(magnitude[i]);
      rank = in_units<Storage>(difference, of_magnitude > exponent ? of_magnitude : exponent);
    }
    block.rank[i] = rank;

    const bool differs = difference != 0;
    const double beyond = difference - (atol + rtol * size);
    const double excess = difference <= allowed ? 0 : beyond;
    outside += differs & !(excess <= 0);
    const std::uint64_t one =
        differs & (!(steps[i] <= largest.distance) | !(difference <= largest.difference) |
                   !(ulps <= largest.ulps) | !(rank <= largest.rank) | !(excess <= largest.excess) |
                   (!(difference < largest.relative * size) & (2 * difference > smallest_step)));
    block.may_be_larger[i] = one;
    larger |= one;
  }
  block.outside = outside, block.has_larger = larger != 0;

  double difference2 = block.difference2, expected2 = block.expected2, product = block.product;
  for (std::size_t i = 0; i < count; ++i) {
    const double difference = block.difference[i];
    difference2 += difference * difference;
    expected2 += hi[i] * hi[i];
    product += difference * hi[i];
  }
  block.difference2 = difference2, block.expected2 = expected2, block.product = product;
}

}  // namespace

void element_errors(numeric::DType dtype, ElementBlock& block) {
  numeric::visit_storage(dtype, [&]<class Storage>(Storage) {
    block.magnitude != nullptr ? errors_of_block<Storage, true>(block)
                               : errors_of_block<Storage, false>(block);
  });
}

bool elements_within(numeric::DType dtype, const void* elements, std::size_t count, double most) {
  return numeric::visit_storage(dtype, [&]<class Storage>(Storage) {
    return numeric::are_within(static_cast<const Storage*>(elements), count, most);
  });
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

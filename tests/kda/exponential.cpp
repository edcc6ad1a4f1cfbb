#include <cmath>
#include <cstring>
#include <vector>

#include "base/parallel.hpp"
#include "kda/kernels/table.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"

using namespace kda_check;

namespace {

/// exp(x) rounded once to float. glibc's exp is within 0.511 ULP in double, so it decides unless it lies
/// within a few of its own last places of the middle between two floats; then MPFR does.
float correctly_rounded_exp(float x) {
  const double near = std::exp(static_cast<double>(x));
  const auto rounded = static_cast<float>(near);
  if (std::isnan(x) || std::isinf(rounded)) return rounded;
  const double up =
      (static_cast<double>(rounded) + static_cast<double>(std::nextafterf(rounded, HUGE_VALF))) / 2;
  const double down =
      (static_cast<double>(rounded) + static_cast<double>(std::nextafterf(rounded, -HUGE_VALF))) / 2;
  const double close = near * 0x1p-50;
  if (std::fabs(near - up) > close && std::fabs(near - down) > close) return rounded;
  return exp(test::Big(static_cast<double>(x))).to_float();
}

}  // namespace

TEST_CASE("the fp32 exponential is correctly rounded for every float", "[exponential]") {
  // Below 2^-26 the result is 1 or a neighbour decided by the sign alone, beyond 104 it is 0 or infinite; a
  // sample of those is enough. The rest, 5.5e8 values, is enumerated.
  constexpr std::uint32_t step = 1 << 16;
  std::vector<std::uint32_t> starts;
  for (const std::uint32_t sign : {0u, 0x80000000u})
    for (std::uint32_t bits = 0x32000000u; bits < 0x42d80000u; bits += step) starts.push_back(sign | bits);
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += std::uint64_t{1} << 26)
    starts.push_back(static_cast<std::uint32_t>(bits));
  std::vector<std::size_t> wrong(starts.size());
  parallel_for(starts.size(), available_threads(), [&](std::size_t item, int) {
    std::vector<float> x(step), y(step);
    for (std::uint32_t i = 0; i < step; ++i) x[i] = std::bit_cast<float>(starts[item] + i);
    kda::kernel_table().fp32.exponential(kda::Exponential::exact, x.data(), y.data(), step);
    for (std::uint32_t i = 0; i < step; ++i) {
      const float wanted = correctly_rounded_exp(x[i]);
      wrong[item] += std::isnan(wanted) ? !std::isnan(y[i]) : std::memcmp(&wanted, &y[i], sizeof wanted) != 0;
    }
  });
  std::size_t total = 0;
  for (const std::size_t count : wrong) total += count;
  CHECK(total == 0);
}

TEST_CASE("the fp64 exponential is that of the C library", "[exponential]") {
  const std::vector<double> x{0.0, -1.0, 0.5, -700.0, 710.0, -746.0, -HUGE_VAL, std::nan("")};
  std::vector<double> y(x.size());
  kda::kernel_table().fp64.exponential(kda::Exponential::libm, x.data(), y.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK((y[i] == std::exp(x[i]) || std::isnan(x[i])));
}

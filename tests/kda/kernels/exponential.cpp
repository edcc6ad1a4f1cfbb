#include <cmath>
#include <cstring>
#include <vector>

#include "base/threads/parallel.hpp"
#include "kda/kernels/table.hpp"
#include "kda/variants/variants.hpp"
#include "numeric/elementary.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"

namespace exponential_tests {

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

TEST_CASE("the fp32 exponential is correctly rounded for any float", "[exponential]") {
  // Below 2^-26 the result is 1 or a neighbour decided by the sign alone, beyond 104 it is 0 or infinite; a
  // sample of those is enough. The rest are 5.5e8 values, which are tried in blocks.
  const test::Sampled sample;
  INFO(sample.text());
  constexpr std::uint32_t step = 1 << 16;
  std::vector<std::uint32_t> starts;
  for (const std::uint32_t sign : {0u, 0x80000000u})
    for (std::uint32_t bits = 0x32000000u; bits < 0x42d80000u; bits += step)
      if (sample.has(bits / step)) starts.push_back(sign | bits);
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

TEST_CASE("on request the fp64 exponential is that of the C library", "[exponential]") {
  const std::vector<double> x{0.0, -1.0, 0.5, -700.0, 710.0, -746.0, -HUGE_VAL, std::nan("")};
  std::vector<double> y(x.size());
  kda::kernel_table().fp64.exponential(kda::Exponential::libm, x.data(), y.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK((y[i] == std::exp(x[i]) || std::isnan(x[i])));
}

TEST_CASE("without a request nothing is that of the C library", "[exponential]") {
  const kda::Problem problem = test::make_problem({});
  for (const kda::Variant& variant : kda::variants())
    for (const numeric::DType dtype : {numeric::DType::fp32, numeric::DType::fp64})
      CHECK(test::default_options(problem, variant.name, dtype).arithmetic.exponential !=
            kda::Exponential::libm);
}

TEST_CASE("exp and log1p over arrays are those of one number, with every instruction set", "[exponential]") {
  // Easy and hard arguments next to each other, so that packs are of both, and of many lengths.
  std::vector<double> x{0.0,
                        -0.0,
                        1e-300,
                        -0x1p-54,
                        0x1.9e9cbbfd6080bp-31,
                        -0x1.12d31a20fb38bp+5,
                        36.7,
                        39.9,
                        40.1,
                        -708.0,
                        -708.1,
                        -745.0,
                        -745.2,
                        -747.0,
                        -1e300,
                        709.7,
                        -HUGE_VAL};
  test::Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    x.push_back(random.uniform(-745, 709));
    x.push_back(random.normal() * std::ldexp(1, -static_cast<int>(random.below(60))));
  }
  const kda::KernelTables tables = kda::kernel_tables();
  for (int table = 0; table < tables.count; ++table) {
    std::size_t wrong = 0;
    for (std::size_t begin = 0, count = 1; begin + count <= x.size();
         begin += count, count = count % 37 + 1) {
      std::vector<double> y(count), g(&x[begin], &x[begin] + count);
      tables.table[table]->fp64.exponential(kda::Exponential::exact, g.data(), y.data(), count);
      tables.table[table]->fp64.gate(
          {1, count, count, g.data(), nullptr, 1.0, false, 0.0, kda::Exponential::exact});
      for (std::size_t i = 0; i < count; ++i) {
        const double z = x[begin + i], e = numeric::exp(z);
        wrong += y[i] != e;
        wrong += g[i] != -(z > 40 ? z : numeric::log1p(e));
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every way to compute exp in fp32 has the bits of its definition, with every instruction set",
          "[exponential]") {
  // Of all floats one in 1009, those around the ends of ranges, and every kind of number that is none.
  std::vector<float> x{0.0F,    -0.0F,  0x1p-149F, -0x1p-126F, 87.3365F,      -87.3365F, 88.7229F, -103.973F,
                       -104.0F, 128.0F, HUGE_VALF, -HUGE_VALF, std::nanf(""), -126.0F,   -127.0F};
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 1009)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  const kda::KernelTables tables = kda::kernel_tables();
  for (const kda::Exponential kind : {kda::Exponential::cuda, kda::Exponential::cuda_fast,
                                      kda::Exponential::exp2_scaled, kda::Exponential::flush}) {
    std::vector<float> wanted(x.size());
    constexpr std::size_t step = 1 << 14;
    const std::size_t steps = (x.size() + step - 1) / step;
    parallel_for(steps, available_threads(), [&](std::size_t item, int) {
      const std::size_t begin = item * step, count = std::min(step, x.size() - begin);
      numeric::exponentials(kind, &x[begin], &wanted[begin], count);
    });
    for (int table = 0; table < tables.count; ++table) {
      std::vector<std::size_t> wrong(steps);
      parallel_for(steps, available_threads(), [&](std::size_t item, int) {
        const std::size_t begin = item * step, count = std::min(step, x.size() - begin);
        std::vector<float> y(count);
        tables.table[table]->fp32.exponential(kind, &x[begin], y.data(), count);
        for (std::size_t i = 0; i < count; ++i)
          wrong[item] += std::isnan(wanted[begin + i])
                             ? !std::isnan(y[i])
                             : std::memcmp(&wanted[begin + i], &y[i], sizeof(float)) != 0;
      });
      std::size_t total = 0;
      for (const std::size_t count : wrong) total += count;
      INFO("exponential " << static_cast<int>(kind) << " table " << table);
      CHECK(total == 0);
    }
  }
}

}  // namespace exponential_tests

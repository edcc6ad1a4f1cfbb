// The probe of a GPU's models, on devices that are no GPU: what answers as a model does, or does not.
#include "kda/gpu/models.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <map>

#include "kda/kernels/table.hpp"
#include "numeric/h100.hpp"
#include "support/catch.hpp"
#include "support/tensor_core.hpp"

namespace gpu_models_tests {

using namespace kda_check;
using namespace kda_check::kda;
namespace h100 = numeric::h100;

namespace {

constexpr std::size_t side = 16;
std::size_t depth_of(Rounding format) { return format == Rounding::tf32 ? 8 : 16; }

/// A device of these tensor cores whose functions are the models'.
ModelledDevice device_like(int bits) {
  return {
      [](const h100::FunctionTrial& trial, std::uint64_t count, const TakeAnswers& take) {
        constexpr std::uint64_t at_once = 1000;  // no multiple of anything
        for (std::uint64_t first = 0; first < count; first += at_once) {
          std::vector<float> x, y, answers(static_cast<std::size_t>(std::min(at_once, count - first)));
          for (std::size_t i = 0; i < answers.size(); ++i) {
            const h100::Operands operands = h100::operands_of(trial.inputs, first + i);
            x.push_back(std::bit_cast<float>(operands.x)), y.push_back(std::bit_cast<float>(operands.y));
          }
          kernel_table().approximate({trial.function, x.data(), y.data(), answers.data(), answers.size()});
          take(first, answers);
        }
      },
      [bits](const Tiles& tiles) {
        const std::size_t depth = depth_of(tiles.format);
        for (std::size_t tile = 0; tile < tiles.count; ++tile) {
          TensorCore core = tensor_core({ReductionKind::mma, bits}, tiles.format, tiles.accumulator);
          core.of_operands = tiles.format;
          kernel_table().tensor_core({core, side, side, depth, tiles.a + tile * side * depth,
                                      tiles.b + tile * side * depth, tiles.c + tile * side * side});
        }
      }};
}

}  // namespace

TEST_CASE("a device that answers as the models do holds them, with the tensor cores it has", "[probe]") {
  for (const int bits : {25, 24}) {
    std::map<std::string, std::string> held;
    for (const ModelReading& reading : read_models(device_like(bits), {5000, 30'000}, {})) {
      INFO(reading.name << ' ' << reading.model << ": " << reading.first);
      CHECK(reading.inputs >= 3000);
      CHECK(reading.first.empty() == reading.holds());
      CHECK(reading.holds() != reading.is_rejected);
      if (reading.is_rejected) CHECK(reading.mismatches > reading.inputs / 1000);
      if (reading.holds()) held[reading.name] = reading.model;
    }
    const std::string own = "mma:" + std::to_string(bits);
    CHECK(held.size() == std::size(h100::function_trials) + 7);
    for (const char* const name :
         {"mma bf16", "mma fp16", "mma fp16 in fp16", "mma tf32", "mma bf16 below 2^-132",
          "mma tf32 below 2^-132", "mma fp16 in fp16 below 2^-20"})
      CHECK(held[name] == own);
  }
}

TEST_CASE("a device with tensor cores of no model is told by all of them", "[probe]") {
  std::size_t failing = 0;
  for (const ModelReading& reading : read_models(device_like(23), {1000, 30'000}, {})) {
    if (!reading.name.starts_with("mma") || reading.name.find("below") != std::string::npos) continue;
    INFO(reading.name << ' ' << reading.model);
    CHECK(!reading.holds());
    CHECK(!reading.is_rejected);
    ++failing;
  }
  CHECK(failing == 8);
}

TEST_CASE("one wrong answer of a function is found, counted and named; any NaN is a NaN", "[probe]") {
  ModelledDevice device = device_like(25);
  const auto right = device.evaluate;
  device.evaluate = [&](const h100::FunctionTrial& trial, std::uint64_t count, const TakeAnswers& take) {
    right(trial, count, [&](std::uint64_t first, std::span<const float> answers) {
      std::vector<float> other(answers.begin(), answers.end());
      for (std::size_t i = 0; i < other.size(); ++i) {
        if (other[i] != other[i]) other[i] = std::bit_cast<float>(0xffc0'0001u);
        if (trial.function == h100::Function::rcp && first + i == 4321) other[i] = 3;
      }
      take(first, other);
    });
  };
  const std::string pattern = fmt::format("0x{:08x}", h100::operands_of(h100::Inputs::patterns, 4321).x);
  std::size_t wrong = 0;
  for (const ModelReading& reading : read_models(device, {5000, 300}, {})) {
    if (!reading.name.starts_with("mma") && !reading.holds()) {
      ++wrong;
      CHECK(reading.name == "rcp.approx.f32");
      CHECK(reading.mismatches == 1);
      CHECK_THAT(reading.first, Catch::Matchers::StartsWith(pattern) && ContainsSubstring("got 0x40400000"));
    }
  }
  CHECK(wrong == 1);
}

TEST_CASE("inputs of functions are all patterns, special pairs, and quotients about 2^-126", "[probe]") {
  // An odd multiple is another pattern for each index.
  CHECK(h100::operands_of(h100::Inputs::patterns, 1).x % 2 == 1);
  std::size_t special = 0, subnormal = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const auto number = [](std::uint32_t pattern) { return std::bit_cast<float>(pattern); };
    const h100::Operands any = h100::operands_of(h100::Inputs::pairs, i);
    const double quotient =
        std::fabs(static_cast<double>(number(any.x)) / static_cast<double>(number(any.y)));
    special += std::isnan(quotient) || std::isinf(quotient) || quotient == 0;
    subnormal += quotient > 0x1p-149 && quotient < 0x1p-126;
    const h100::Operands bottom = h100::operands_of(h100::Inputs::quotients_at_bottom, i);
    const double low =
        std::fabs(static_cast<double>(number(bottom.x)) / static_cast<double>(number(bottom.y)));
    REQUIRE(std::fabs(low * 0x1p126 - 1) < 0x1p-18);
  }
  CHECK(special > 500);
  CHECK(subnormal > 1000);
}

TEST_CASE("every instruction set gives the same bits: approximate functions", "[kernels][probe]") {
  const KernelTables tables = kernel_tables();
  for (const h100::FunctionTrial& trial : h100::function_trials) {
    constexpr std::size_t count = 100'003;
    std::vector<float> x(count), y(count), first(count), other(count);
    for (std::size_t i = 0; i < count; ++i) {
      const h100::Operands operands = h100::operands_of(trial.inputs, i);
      x[i] = std::bit_cast<float>(operands.x), y[i] = std::bit_cast<float>(operands.y);
    }
    tables.table[0]->approximate({trial.function, x.data(), y.data(), first.data(), count});
    for (int t = 1; t < tables.count; ++t) {
      tables.table[t]->approximate({trial.function, x.data(), y.data(), other.data(), count});
      std::size_t differing = 0;
      for (std::size_t i = 0; i < count; ++i) differing += !test::same(first[i], other[i]);
      INFO(trial.name << ", " << tables.table[t]->instruction_set);
      CHECK(differing == 0);
    }
  }
}

}  // namespace gpu_models_tests

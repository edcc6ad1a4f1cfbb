// The models of a GPU's arithmetic (docs/arithmetic.md, "The H100" and "Tensor cores") held to the GPU at
// hand.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kda/arithmetic/arithmetic.hpp"
#include "numeric/h100_functions.hpp"

namespace kda_check::kda {

/// Tiles of 16 x 16 sums on a tensor core, C = C + A B, each sum by one instruction: 16 products, 8 of tf32.
/// Numbers are those of the formats, in fp32; tf32 operands have 32 bits, of which it takes 19.
struct Tiles {
  Rounding format;
  Accumulator accumulator;
  std::size_t count;
  const float *a, *b;  ///< [count][16][depth], [count][depth][16]
  float* c;            ///< [count][16][16], in and out
};
/// Takes the answers to inputs number first, first + 1, ...
using TakeAnswers = std::function<void(std::uint64_t first, std::span<const float> answers)>;

/// What is held to the models.
struct ModelledDevice {
  /// Hands out the answers to the first `count` inputs of a trial, in their order.
  std::function<void(const numeric::h100::FunctionTrial&, std::uint64_t count, const TakeAnswers&)> evaluate;
  std::function<void(const Tiles&)> multiply;
};
/// Its functions throw Error{environment} without a GPU.
ModelledDevice gpu_at_hand();

/// How much is tried: of a function's inputs, evenly spread; of the sums of each format.
struct ModelTrials {
  std::uint64_t inputs = std::numeric_limits<std::uint64_t>::max();
  std::size_t sums = 10'000'000;
};

/// What a model says against what the device answers, bit by bit; a NaN is as good as any other.
struct ModelReading {
  std::string name;   ///< of what the device does: "ex2.approx.ftz.f32", "mma bf16"
  std::string model;  ///< "h100", or the value of `reduction`: "mma:25"
  std::uint64_t inputs = 0, mismatches = 0;
  std::string first;         ///< mismatch: input, got, expected; empty: none
  bool is_rejected = false;  ///< another model of the same holds, and this one does not

  bool holds() const { return mismatches == 0; }
};

/// `watch` hears what is being tried.
std::vector<ModelReading> read_models(const ModelledDevice& device, const ModelTrials& trials,
                                      const std::function<void(const std::string&)>& watch);

}  // namespace kda_check::kda

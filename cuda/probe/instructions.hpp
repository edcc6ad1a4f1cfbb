// Single instructions of the device, and functions that nvcc makes of them, on inputs of our choice: what the
// models of docs/arithmetic.md are held to (kda/gpu/models.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kda/arithmetic/arithmetic.hpp"
#include "numeric/h100_functions.hpp"

namespace kda_check::cuda {

/// A function on inputs number 0 to count - 1.
struct FunctionRequest {
  numeric::h100::Function function;
  numeric::h100::Inputs inputs;
  std::uint64_t count;
};
/// The answers to inputs number first, first + 1, ...; valid during the call.
using AnswerSink = std::function<void(std::uint64_t first, std::span<const float> answers)>;

/// Block by block, in their order. The sink is called from this thread, while the device goes on. Throws
/// Error{environment} when the device fails or lacks memory.
void evaluate(const FunctionRequest& request, const AnswerSink& sink);

/// Rows and columns of a tile, and the products that an instruction adds to each of its elements.
inline constexpr std::size_t tile_side = 16;
constexpr std::size_t tile_depth(kda::Rounding format) { return format == kda::Rounding::tf32 ? 8 : 16; }

/// C = C + A B on a tensor core, tile by tile, each element by one mma.sync (m16n8k16, m16n8k8 for tf32).
/// Numbers are those of the formats, in fp32; of tf32 operands all 32 bits go to the instruction.
struct TileRequest {
  kda::Rounding format;          ///< of operands: bf16, fp16 or tf32
  kda::Accumulator accumulator;  ///< fp16: with fp16 operands only
  std::size_t tiles;
  const float* a;  ///< [tiles][16][depth]
  const float* b;  ///< [tiles][depth][16]
  float* c;        ///< [tiles][16][16], in and out
};
/// Throws as evaluate() does.
void multiply(const TileRequest& request);

}  // namespace kda_check::cuda

// What kernels ask of the arithmetic at each operation, and how their arrays are padded. Plain data.
#pragma once

#include <cstddef>

#include "kda/arithmetic/arithmetic.hpp"

namespace kda_check::kda {

/// Row strides of scratch arrays are multiples of this many elements, whatever the instruction set.
inline constexpr std::size_t padding = 32;
constexpr std::size_t padded(std::size_t count) { return (count + padding - 1) / padding * padding; }

/// What gates to the base 2 are multiplied by: log2(e) in fp32.
template <class T>
inline constexpr T log2_of_e = T(0x1.715476p+0);

struct Operations {
  bool is_fused = true;
  Exponential exponential = Exponential::exact;
  Special special = Special::ieee;
  Reduction reduction{};
  Gates gates = Gates::natural;
  Update update = Update::chained;  ///< chained, added or decay_fused
  Subnormals subnormals = Subnormals::gradual;
  Accumulator accumulator = Accumulator::fp32;
  Delta delta = Delta::wy;
  ScaledPart scale = ScaledPart::scores;
  Output output = Output::chained;
  bool has_factored_tail = false;
  bool rounds_tail = false;  ///< k exp(-G) of a factored one
  Merge merge = Merge::nearest;
  std::size_t merge_rows = 16;
  BetaPart beta = BetaPart::rows;
  Readout readout = Readout::start;
  /// Where rows are added up as Triton does: those of the norm, of the columns of a token form's state, of
  /// scores by pairs and of the inverse.
  RowLayout norm{}, columns{}, pairs{}, substitution{};
  NormHalves norm_halves{};       ///< under ReductionKind::triton
  bool of_upper_columns = false;  ///< q and k are those that the other columns of `norm_halves` read
  std::size_t scan_rows = 0;      ///< gates that are added up so many at once; 0: row by row
  /// Scores: of sixteen channels a tensor core takes the even ones first, as Triton loads 16-bit operands
  /// that it multiplies in tf32.
  bool interleaves_scores = false;
};

/// Running sums of a row under ReductionKind::xla, which also are the rows of a run of the gates' sums.
inline constexpr std::size_t xla_lanes = 16;

/// A sum of products on a tensor core: groups of products, chained through the accumulator.
struct TensorCore {
  std::size_t together = 0;   ///< products of a group; 0: the sum is none of a tensor core's
  int bits = 25;              ///< that terms keep below the largest
  int least_exponent = -126;  ///< of operands: what subnormal ones count with
  Accumulator accumulator = Accumulator::fp32;
  Rounding of_operands = Rounding::none;  ///< as they are taken
  bool splits = false;                    ///< operands, then, into three bf16 numbers each

  /// How far below the accumulator's smallest exponent that of the largest term may be.
  constexpr std::int32_t sinks() const { return bits == 24 ? 6 : 7; }
};
/// One instruction takes 16 products of 16-bit operands, 8 of tf32 and of operands that are not rounded,
/// where these are not split; cores that keep 24 bits add one half of them after the other.
constexpr TensorCore tensor_core(const Reduction& reduction, Rounding operands,
                                 Accumulator accumulator = Accumulator::fp32) {
  if (!has_tensor_cores(reduction) || reduction.kind == ReductionKind::triton_rows) return {};
  const bool splits = reduction.kind == ReductionKind::split && operands == Rounding::none;
  const std::size_t products = operands == Rounding::bf16 || operands == Rounding::fp16 || splits ? 16 : 8;
  constexpr int of_halves = 24;
  return {reduction.width == of_halves ? products / 2 : products,
          reduction.width,
          operands == Rounding::fp16 ? -14 : -126,
          accumulator,
          Rounding::none,
          splits};
}

/// What kernels are told: how scores take their channels is a matter of `interleaves_scores`, how lanes add
/// up what is theirs of layouts.
constexpr Reduction in_kernels(Reduction reduction) {
  if (is_triton(reduction)) reduction.kind = ReductionKind::triton;
  if (reduction.kind == ReductionKind::lanes_paired) reduction.kind = ReductionKind::lanes;
  return reduction;
}

constexpr Operations operations_of(const Arithmetic& arithmetic) {
  return {arithmetic.contraction == Contraction::fused,
          arithmetic.exponential,
          arithmetic.special,
          in_kernels(arithmetic.reduction),
          arithmetic.gates,
          arithmetic.update,
          arithmetic.subnormals,
          arithmetic.accumulator,
          arithmetic.delta,
          arithmetic.scale,
          arithmetic.output,
          arithmetic.tail == TailForm::factored || arithmetic.tail == TailForm::factored_late,
          arithmetic.tail == TailForm::factored,
          arithmetic.merge,
          static_cast<std::size_t>(arithmetic.merge_rows),
          arithmetic.beta,
          arithmetic.readout};
}

}  // namespace kda_check::kda

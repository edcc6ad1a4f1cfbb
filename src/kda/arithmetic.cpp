#include "kda/arithmetic.hpp"

#include <fmt/format.h>

namespace kda_check::kda {

namespace {

using numeric::DType;

/// docs/kda.md, "FLA chunk forward" and "FLA chunk backward".
CastPoints fla_cast_points(Rounding narrow, bool beta_is_16_bit) {
  CastPoints casts;
  casts.normalised = narrow;
  casts.score_operands = Rounding::tf32;
  casts.Aqk = narrow;
  casts.inverse_operands = Rounding::tf32;
  casts.Akk_inv = narrow;
  casts.beta_key = beta_is_16_bit ? narrow : Rounding::none;
  casts.operands = narrow;
  casts.w = casts.u = casts.v_new = narrow;
  casts.state = narrow;
  casts.dv_local = casts.dv = casts.dh = casts.dw = casts.dA = casts.state_product = narrow;
  return casts;
}

/// docs/kda.md, "Machine model": tensor cores take fp32 operands as tf32. What is no operand stays.
CastPoints tensor_core_operands() {
  CastPoints casts = fla_cast_points(Rounding::tf32, false);
  casts.normalised = casts.u = casts.dv_local = casts.state_product = Rounding::none;
  return casts;
}

/// docs/kda.md, "FlashKDA", as far as its stages are those of the chunk form here: FlashKDA subtracts the
/// prediction before it multiplies by the inverse.
CastPoints flash_kda_cast_points() {
  CastPoints casts;
  casts.normalised = casts.exponentials = casts.score_operands = casts.Aqk = casts.Akk_inv = Rounding::bf16;
  casts.L = casts.inverse_operands = Rounding::fp16;
  casts.operands = casts.w = casts.u = casts.prediction = casts.v_new = Rounding::bf16;
  casts.state = casts.carry = Rounding::bf16;
  return casts;
}

constexpr AxisRow axis_rows[] = {
    {"contraction", "a*b + c in one rounding or two",
     [](const Arithmetic& from, Arithmetic& to) { to.contraction = from.contraction; }},
    {"exponential", "how exp is evaluated",
     [](const Arithmetic& from, Arithmetic& to) { to.exponential = from.exponential; }},
    {"reduction", "the order of sums",
     [](const Arithmetic& from, Arithmetic& to) { to.reduction = from.reduction; }},
    {"storage", "operands and stages rounded below the format of the computation",
     [](const Arithmetic& from, Arithmetic& to) {
       to.storage = from.storage;
       to.casts = from.casts;
     }},
    {"formulation", "the decay, the inverse and the tail of the chunk form",
     [](const Arithmetic& from, Arithmetic& to) {
       to.decay = from.decay;
       to.anchor_rows = from.anchor_rows;
       to.clamp = from.clamp;
       to.inverse = from.inverse;
       to.inverse_rows = from.inverse_rows;
       to.tail = from.tail;
     }},
};

}  // namespace

Arithmetic ideal_arithmetic() {
  Arithmetic ideal;
  ideal.reduction = {ReductionKind::exact, 0};
  ideal.storage = Storage::none;
  ideal.decay = DecayForm::pair;
  return ideal;
}

std::span<const AxisRow> axes() { return axis_rows; }

CastPoints cast_points(const Arithmetic& arithmetic, DType dtype, bool beta_is_16_bit, bool chunk) {
  if (dtype == DType::fp64) return {};
  const bool is_narrow = dtype == DType::bf16 || dtype == DType::fp16;
  const Rounding narrow = dtype == DType::bf16 ? Rounding::bf16 : Rounding::fp16;
  switch (arithmetic.storage) {
    case Storage::none:
      return {};
    case Storage::upstream:
      return chunk && is_narrow ? fla_cast_points(narrow, beta_is_16_bit) : CastPoints{};
    case Storage::fla:
      if (!chunk) return {};
      return is_narrow ? fla_cast_points(narrow, beta_is_16_bit) : tensor_core_operands();
    case Storage::flash_kda:
      return chunk ? flash_kda_cast_points() : CastPoints{};
    case Storage::named:
      break;
  }
  return arithmetic.casts;
}

std::string unsupported(const Arithmetic& arithmetic, DType dtype) {
  if (dtype != DType::fp64) return {};
  if (arithmetic.exponential != Exponential::exact && arithmetic.exponential != Exponential::libm)
    return "this exponential exists in fp32 only";
  if (arithmetic.reduction.kind == ReductionKind::mma) return "tensor cores add in fp32 only";
  return {};
}

}  // namespace kda_check::kda

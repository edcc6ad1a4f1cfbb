#include "kda/arithmetic.hpp"

#include <fmt/format.h>

namespace kda_check::kda {

namespace {

using numeric::DType;

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

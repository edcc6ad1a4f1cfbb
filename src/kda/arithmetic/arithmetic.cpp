#include "kda/arithmetic/arithmetic.hpp"

#include <fmt/format.h>

#include "base/names.hpp"

namespace kda_check::kda {

namespace {

using numeric::DType;

/// What its words say, whether or not a run comes past there. Not in fp64.
CastPoints casts_of_storage(const Arithmetic& arithmetic, DType dtype, bool beta_is_16_bit, bool chunk) {
  const bool is_narrow = dtype == DType::bf16 || dtype == DType::fp16;
  const Rounding narrow = dtype == DType::bf16 ? Rounding::bf16 : Rounding::fp16;
  switch (arithmetic.storage) {
    case Storage::none:
      return {};
    case Storage::triton: {
      if (chunk && is_narrow) return fla_cast_points(narrow, beta_is_16_bit);
      CastPoints casts;
      if (chunk) casts.tensor_core = Rounding::tf32;
      return casts;
    }
    case Storage::upstream:
      return chunk && is_narrow ? fla_cast_points(narrow, beta_is_16_bit) : CastPoints{};
    case Storage::fla:
      if (!chunk) return {};
      return is_narrow ? fla_cast_points(narrow, beta_is_16_bit) : tensor_core_operands();
    case Storage::flash_kda:
      return chunk ? flash_kda_cast_points(arithmetic.delta == Delta::residual) : CastPoints{};
    case Storage::h100_mma:
      return chunk && is_narrow ? narrow_operands(narrow) : CastPoints{};
    case Storage::sglang_jax:
      return chunk && is_narrow ? stages_between_kernels(narrow) : CastPoints{};
    case Storage::named:
      break;
  }
  return arithmetic.casts;
}

}  // namespace

Arithmetic ideal_arithmetic() {
  Arithmetic ideal;
  ideal.reduction = {ReductionKind::exact, 0};
  ideal.storage = Storage::none;
  ideal.decay = DecayForm::pair;
  return ideal;
}

CastPoints cast_points(const Arithmetic& arithmetic, DType dtype, bool beta_is_16_bit, bool chunk) {
  if (dtype == DType::fp64) return {};
  CastPoints casts = casts_of_storage(arithmetic, dtype, beta_is_16_bit, chunk);
  if (arithmetic.segments.merge == SegmentMerge::none)
    casts.transition = casts.segment_state = Rounding::none;
  return casts;
}

std::string unsupported(const Arithmetic& arithmetic, DType dtype) {
  if (arithmetic.gates != Gates::natural &&
      (arithmetic.exponential == Exponential::libm || arithmetic.exponential == Exponential::poly))
    return "exponential=libm and poly have no powers of two, which gates=log2 and log2-each ask for";
  if (arithmetic.accumulator != Accumulator::fp32 && !has_tensor_cores(arithmetic.reduction))
    return "accumulator=fp16 is that of a tensor core: reduction=mma, triton, triton-rows, lanes, "
           "lanes-paired or split";
  if (arithmetic.storage == Storage::named && arithmetic.casts.off_diagonal != Rounding::none &&
      is_pairwise(arithmetic.decay))
    return "storage=...@off_diagonal rounds factored scores, and decay=pair, pair-late, pair-rows and "
           "pair-products have none";
  if (arithmetic.beta == BetaPart::keys &&
      (is_pairwise(arithmetic.decay) || arithmetic.decay == DecayForm::anchor_pair))
    return "beta=keys is on keys of factored scores, and decay=pair, pair-late, pair-rows, pair-products and "
           "anchor-pair have others";
  if (dtype != DType::fp64) return {};
  if (arithmetic.exponential != Exponential::exact && arithmetic.exponential != Exponential::libm)
    return "this exponential exists in fp32 only";
  if (arithmetic.gates != Gates::natural) return "gates=log2 and log2-each exist in fp32 only";
  if (arithmetic.special != Special::ieee)
    return "special=triton, triton-logf, fast, fast-floor, fast-division and fast-signed exist in fp32 only";
  if (arithmetic.subnormals != Subnormals::gradual) return "subnormals=flush exists in fp32 only";
  if (has_tensor_cores(arithmetic.reduction)) return "tensor cores add in fp32 only";
  if (arithmetic.stored != StoredState{}) return "a state is stored below fp32 where it is computed in fp32";
  return {};
}

std::string AxisDescription::values() const {
  return join(names) + (grammar.empty() ? "" : ", or " + grammar);
}

}  // namespace kda_check::kda

#include "engine/manner.hpp"

#include <algorithm>

namespace kda_check::engine {

namespace {

using numeric::ComputeFormat;
using numeric::DType;

kda::Arithmetic arithmetic_of(const kda::Preset& kernel) {
  kda::Arithmetic arithmetic;
  kda::set_axis(arithmetic, kernel.name);
  return arithmetic;
}

/// What is rounded where operands are narrow depends on them.
void copy_orders_of_products(const kda::Arithmetic& from, kda::Arithmetic& to) {
  to.delta = from.delta == kda::Delta::fused ? kda::Delta::wy : from.delta;  // the token forms have that one
  to.beta = from.beta, to.scale = from.scale, to.output = from.output, to.readout = from.readout;
}

const kda::Preset* kernel_that_rounds_so(const Answered& answer, const kda::Problem& problem) {
  if (answer.dtype != DType::bf16 && answer.dtype != DType::fp16) return nullptr;
  const auto casts_of = [&](const kda::Arithmetic& arithmetic) {
    return kda::cast_points(arithmetic, answer.dtype, problem.beta_is_16_bit(), true);
  };
  if (casts_of(answer.said) == casts_of(kda::Arithmetic{})) return nullptr;
  const auto found = std::ranges::find_if(kda::presets(), [&](const kda::Preset& kernel) {
    kda::Arithmetic known = arithmetic_of(kernel), said = known;
    said.storage = answer.said.storage, said.casts = answer.said.casts;
    return kernel.variant == "chunk" && casts_of(said) == casts_of(known);
  });
  return found == kda::presets().end() ? nullptr : &*found;
}

}  // namespace

void Manner::take_over(kda::Arithmetic& arithmetic) const {
  if (kernel != nullptr) {
    const kda::Arithmetic known = arithmetic_of(*kernel);
    for (const kda::AxisRow& axis : kda::axes())
      if (axis.name == "storage" || axis.name == "formulation") axis.copy(known, arithmetic);
  }
  copy_orders_of_products(orders, arithmetic);
  if (orders.gates != kda::Gates::natural) arithmetic.gates = orders.gates;
}

void Manner::surround(kda::Arithmetic& arithmetic) const {
  if (scales_before) arithmetic.scale = kda::ScaledPart::before;
  arithmetic.heads = heads;
}

Manner manner_of(const Answered& answer, const kda::Problem& problem) {
  Manner manner;
  manner.scales_before = answer.said.scale == kda::ScaledPart::before;
  manner.heads = answer.said.heads;
  if (answer.form == judge::Form::recurrence) return manner;
  if (answer.compute == ComputeFormat::fp32) {
    manner.orders.gates = answer.said.gates;  // nothing beside what is lost in narrower products
  } else {
    manner.kernel = kernel_that_rounds_so(answer, problem);
    copy_orders_of_products(answer.said, manner.orders);
  }
  return manner;
}

}  // namespace kda_check::engine

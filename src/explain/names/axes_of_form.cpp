#include "explain/names/axes_of_form.hpp"

#include <string_view>

namespace kda_check::explain {

namespace {

constexpr std::string_view formulation = "formulation";

}  // namespace

bool has_axis(const kda::Variant& variant, const kda::AxisRow& axis) {
  return variant.axes.chunk || !axis.chunk_only;
}

bool is_shared(const kda::AxisRow& axis, const kda::Variant& a, const kda::Variant& b) {
  return !axis.chunk_only && (axis.name != formulation || (!a.axes.chunk && !b.axes.chunk));
}

std::string axis_value(const kda::Arithmetic& arithmetic, const kda::AxisRow& axis,
                       const kda::Variant& variant) {
  if (variant.axes.chunk || axis.name != formulation) return kda::axis_value(arithmetic, axis.name);
  kda::Arithmetic of_tokens;
  const std::size_t usual = kda::axis_value(of_tokens, axis.name).size();
  if (arithmetic.delta == kda::Delta::fused) of_tokens.delta = arithmetic.delta;
  of_tokens.heads = arithmetic.heads;
  if (arithmetic.scale == kda::ScaledPart::output || arithmetic.scale == kda::ScaledPart::norm ||
      arithmetic.scale == kda::ScaledPart::before)
    of_tokens.scale = arithmetic.scale;
  if (arithmetic.update == kda::Update::decay_fused) of_tokens.update = arithmetic.update;
  const std::string text = kda::axis_value(of_tokens, axis.name);
  return text.size() == usual ? "as usual" : text.substr(usual + std::string_view(", ").size());
}

bool are_one(const kda::Arithmetic& a, const kda::Arithmetic& b, const kda::Variant& variant) {
  return variant.axes.chunk ? a == b : kda::describe(a, variant.axes) == kda::describe(b, variant.axes);
}

}  // namespace kda_check::explain

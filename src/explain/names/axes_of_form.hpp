// What an axis of the arithmetic is in a form: of the formulation, all of it the chunk form's, the token
// forms have the delta, the scale and the update.
#pragma once

#include <string>

#include "kda/variants/variants.hpp"

namespace kda_check::explain {

/// Whether answers of a variant depend on an axis.
bool has_axis(const kda::Variant& variant, const kda::AxisRow& axis);

/// Whether what an axis says of one variant can be said of the other.
bool is_shared(const kda::AxisRow& axis, const kda::Variant& a, const kda::Variant& b);

/// The value of an axis as the form of a variant has it: "fused delta", "as usual".
std::string axis_value(const kda::Arithmetic& arithmetic, const kda::AxisRow& axis,
                       const kda::Variant& variant);

/// Whether two arithmetics are one to the form of a variant.
bool are_one(const kda::Arithmetic& a, const kda::Arithmetic& b, const kda::Variant& variant);

}  // namespace kda_check::explain

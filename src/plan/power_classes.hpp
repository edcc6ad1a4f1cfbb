// The precisions whose gates `power` measures, and a healthy kernel of each.
#pragma once

#include <string_view>

#include "kda/variants/variants.hpp"
#include "plan/plan.hpp"

namespace kda_check::plan {

/// "bf16", "fp16", "tf32", "fp32": what --class takes.
Names power_classes();

/// The element type of o in a class. Throws Error{usage} for one that does not exist, or has no twins.
numeric::DType power_dtype(std::string_view name);

/// That of a healthy answer.
std::string_view power_class(const Answer& answer);

/// How the healthy kernel of a class computes: in chunks, and in no way that a twin does
/// (engine/twin_family.cpp).
kda::RunOptions healthy_options(std::string_view name, const kda::Outline& problem);

}  // namespace kda_check::plan

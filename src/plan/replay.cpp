#include "plan/replay.hpp"

#include "plan/selection.hpp"

namespace kda_check::plan {

const kda::Variant& on_cpu(const kda::Variant& variant) {
  return variant.replay.empty() ? variant : kda::variant_named(variant.replay);
}

std::string why_no_replay(const kda::Variant& variant, const kda::Outline& problem,
                          const kda::RunOptions& options) {
  if (variant.replay.empty()) return {};
  if (options.dtype == numeric::DType::fp64)
    return "no replay in fp64: the exponential of CUDA is not that of the CPU";
  const std::string reason = why_not(on_cpu(variant), problem, options);
  return reason.empty() ? reason : "no replay: " + reason;
}

}  // namespace kda_check::plan

#include "session/selection.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::session {

using numeric::DType;

std::vector<const kda::Variant*> selected_variants(const std::vector<std::string>& names,
                                                   std::span<const kda::Variant> registry) {
  std::vector<const kda::Variant*> list;
  for (const std::string& name : without_repeats(names)) list.push_back(&kda::variant_named(name, registry));
  if (list.empty())
    for (const kda::Variant& variant : registry)
      if (variant.unavailable().empty()) list.push_back(&variant);
  return list;
}

std::vector<std::optional<DType>> selected_dtypes(const std::vector<std::string>& names) {
  std::vector<std::optional<DType>> list;
  for (const std::string& name : without_repeats(names)) {
    const auto dtype = numeric::dtype_named(name);
    if (!dtype && name != "fixture") {
      std::vector<std::string> known{"fixture"};
      for (const numeric::Format& format : numeric::formats) known.emplace_back(format.name);
      throw Error(ErrorKind::usage, fmt::format("no dtype '{}'", name), {}, suggest(name, known));
    }
    list.push_back(dtype);
  }
  if (list.empty()) list.push_back(std::nullopt);
  return list;
}

void check_arithmetic(const std::vector<std::string>& assignments,
                      const std::vector<const kda::Variant*>& variants) {
  for (const std::string& assignment : assignments) {
    kda::Arithmetic unused;
    kda::set_axis(unused, assignment);
    const bool anybody = std::any_of(variants.begin(), variants.end(), [&](const kda::Variant* variant) {
      return kda::has_axis(variant->axes, assignment);
    });
    if (!anybody)
      throw Error(ErrorKind::usage,
                  fmt::format("--arithmetic {}: none of the selected variants has this axis", assignment));
  }
}

std::string why_not(const kda::Variant& variant, const kda::Problem& problem,
                    const kda::RunOptions& options) {
  const std::string reason = variant.unavailable();
  return reason.empty() ? variant.unsupported(problem, options) : reason;
}

bool holds_exactly(DType wide, DType narrow) {
  const numeric::Format &a = numeric::format_of(wide), &b = numeric::format_of(narrow);
  return a.precision >= b.precision && a.max_exponent >= b.max_exponent && a.min_exponent <= b.min_exponent;
}

kda::RunOptions run_options(const kda::Variant& variant, const kda::Problem& problem, DType dtype,
                            const std::vector<std::string>& assignments, std::size_t chunk_size,
                            int threads) {
  kda::RunOptions options;
  options.dtype = dtype;
  options.chunk_size = chunk_size;
  options.threads = threads;
  options.arithmetic = variant.default_arithmetic(problem, dtype);
  for (const std::string& assignment : assignments)
    if (kda::has_axis(variant.axes, assignment)) kda::set_axis(options.arithmetic, assignment);
  return options;
}

}  // namespace kda_check::session

// What a request selects among variants, dtypes and arithmetic; shared by the commands that run variants.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kda/variants.hpp"

namespace kda_check::session {

/// Empty names select all that can run here. Throws Error{usage}.
std::vector<const kda::Variant*> selected_variants(const std::vector<std::string>& names,
                                                   std::span<const kda::Variant> registry = kda::variants());

/// nullopt is the fixture's dtype, which is also what no names select. Throws Error{usage}.
std::vector<std::optional<numeric::DType>> selected_dtypes(const std::vector<std::string>& names);

/// Throws Error{usage} for words that --arithmetic does not take, or an axis that no variant of the list has.
void check_arithmetic(const std::vector<std::string>& assignments,
                      const std::vector<const kda::Variant*>& variants);

/// True when every value of `narrow` is a value of `wide`.
bool holds_exactly(numeric::DType wide, numeric::DType narrow);

/// The default arithmetic of a variant, changed by the assignments whose axes it has.
kda::RunOptions run_options(const kda::Variant& variant, const kda::Problem& problem, numeric::DType dtype,
                            const std::vector<std::string>& assignments, std::size_t chunk_size, int threads);

/// Why a variant cannot run this way here; empty when it can.
std::string why_not(const kda::Variant& variant, const kda::Problem& problem, const kda::RunOptions& options);

}  // namespace kda_check::session

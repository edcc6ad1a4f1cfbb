// What a machine must have for a result to count: --require.
#pragma once

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kda/variants.hpp"
#include "report/attribution.hpp"
#include "report/growth.hpp"
#include "report/result.hpp"

namespace kda_check::session {

/// "gpu": every variant of that device can run here, and at least one of them answered.
std::span<const std::string_view> requirements();

/// To be asked before anything runs. Throws Error{usage} for a name that is no requirement,
/// Error{environment} for one that this machine does not meet.
void check_requirements(const std::vector<std::string>& names,
                        std::span<const kda::Variant> registry = kda::variants());

/// To be asked when everything ran: one error (exit code 4) for each requirement with none of its variants in
/// `answered`, the names of those that answered something.
std::vector<report::FailedInput> missed_requirements(
    const std::vector<std::string>& names, const std::set<std::string>& answered,
    std::span<const kda::Variant> registry = kda::variants());

/// The variants whose answers a result is about; not those of which it has a recorded answer only.
std::set<std::string> variants_that_answered(const report::Result& result);
std::set<std::string> variants_that_answered(const report::GrowthResult& result);
std::set<std::string> variants_that_answered(const report::AttributionResult& result);

/// Adds what was missed to the errors of a result, when everything ran.
template <class Result>
void add_missed_requirements(const std::vector<std::string>& names, Result& result) {
  for (report::FailedInput& missed : missed_requirements(names, variants_that_answered(result)))
    result.errors.push_back(std::move(missed));
}

}  // namespace kda_check::session

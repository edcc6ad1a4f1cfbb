// The part of `selftest` that is a suite: what its lines say about wrong kernels and about healthy ones.
#pragma once

#include "session/mutants.hpp"
#include "session/selftest.hpp"

namespace kda_check::session {

/// A row of the variant list for a mutant: runs as `like`, under its own name.
kda::Variant variant_of(const Mutant& mutant);
kda::Variant variant_of(const BackwardMutant& mutant);

/// The first line that does not let the mutant pass, or empty. The mutant takes the place of the variant it
/// is like, in its dtype, where the line names both; errors of the lines go to `errors`.
std::string caught_in(const Mutant& mutant, const SelftestRequest& suite, const Log& log,
                      std::vector<report::FailedInput>& errors);
/// By its gradients alone.
std::string caught_in(const BackwardMutant& mutant, const SelftestRequest& suite, const Log& log,
                      std::vector<report::FailedInput>& errors);

/// All lines as they are, on 1 thread and on 2; the second is alarmed where its results differ from the
/// first.
std::vector<SuiteRun> healthy_over(const SelftestRequest& suite, const Log& log,
                                   std::vector<report::FailedInput>& errors);

}  // namespace kda_check::session

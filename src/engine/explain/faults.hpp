// Which fault explains an output that failed, for `explain` and for the reasons of `run`.
#pragma once

#include "engine/answered.hpp"
#include "hypotheses/naming/naming.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// The limit on rms_ratio; without one that can be met, sixteen roundings to the element type.
double rms_limit(const report::TensorResult& tensor);

/// `failed`: what was found of its tensors.
hypotheses::Naming named(const kda::Problem& problem, const Answered& got, const report::CaseResult& failed,
                         int threads, const hypotheses::NamingEffort& effort);

/// "as if the decay is exp2(g), not exp(g) (exp2): 99.9 % explained"; empty where no fault explains it.
std::string cause_text(const hypotheses::Naming& naming);

}  // namespace kda_check::engine

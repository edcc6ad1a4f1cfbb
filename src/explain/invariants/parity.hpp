// The same problem computed in every way that an engine may come to it, and every pair of these ways
// compared: the law `parity` of `run --invariants` (docs/serving.md).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "explain/invariants/invariants.hpp"

namespace kda_check::explain {

/// Their names, as rows and columns of the matrix.
std::vector<std::string_view> parity_ways();

/// The first tensor that differs, the first token of a sequence where it does, and how much of it: "o t=17,
/// 0.4 % of it"; empty where no bit does.
std::string first_difference(const Trial& trial, const kda::Problem& problem);

/// The row of the law: every pair of the ways that the problem and the subject have.
std::string parity_inapplicable(const kda::Problem& problem, kda::Pass pass);
void run_parity(const kda::Problem& problem, const kda::Tensors& reference, const Subject& subject,
                const std::function<void(Trial)>& sink);

}  // namespace kda_check::explain

// A problem whose gates are evaluated already, and its answer in fp64: where faults and offsets of gates are
// tried.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kda/variants/variants.hpp"

namespace kda_check::kda {

/// The same problem with its log decays as g, evaluated in fp64 or fp32: nothing of the gate is left to the
/// kernel.
Problem with_log_decays(const Problem& problem, numeric::DType dtype = numeric::DType::fp64);

/// A value head, and one channel of its key or all of them.
using DecayOf = std::pair<std::size_t, std::optional<std::size_t>>;
/// The log decays of those times `factor`; `problem` is without a gate of its own.
Problem with_scaled_log_decays(const Problem& problem, const std::vector<DecayOf>& which, double factor);

/// The channel of a value head that remembers longest: whose log decays have the largest sum below 0; of a
/// problem without a gate of its own. None: none decays.
std::optional<std::size_t> slowest_channel(const Problem& problem, std::size_t head);

/// What the recurrence answers in fp64.
Answer answer_in_fp64(const Problem& problem, int threads = 1);
/// The same of a pass, by name: of the backward one the gradients that the problem has.
Tensors results_in_fp64(Pass pass, const Problem& problem, int threads);

/// "o", or otherwise the final state.
const tensor::Tensor& tensor_of(const Answer& answer, std::string_view name);

}  // namespace kda_check::kda

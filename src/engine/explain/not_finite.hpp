// Why an output is no number where the truth is one.
#pragma once

#include <string>

#include "engine/answered.hpp"

namespace kda_check::engine {

/// "rounding: as of a kernel in chunks of 64 whose state between chunks is in fp16 ...", of a tensor of an
/// output: a computation or a rule that loses the same elements; empty where none does.
std::string not_finite_like(const kda::Problem& problem, const Answered& got,
                            const report::TensorResult& failed, int threads);

}  // namespace kda_check::engine

// Where a tensor that failed is wrong, for the reasons of `run`.
#pragma once

#include <string>

#include "engine/answered.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// "right up to token 63 in all heads, wrong from 64 (row 0 of chunk 1)"; "sequence 1 alone"; "columns 32..47
/// alone: zero, never written?". Tokens are counted in their sequence. Empty where it is wrong everywhere, or
/// no row is clearly beyond `limit`, that of rms_ratio. `failed` is one of its tensors. Of large problems one
/// head alone is looked at, or nothing.
std::string place_of_error(const kda::Problem& problem, const Answered& got,
                           const report::TensorResult& failed, double limit, int threads);

}  // namespace kda_check::engine

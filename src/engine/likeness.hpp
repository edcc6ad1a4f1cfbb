// What stands in the place of the truth where an answer is wrong: nothing, or the truth of somewhere else.
#pragma once

#include <string>

#include "judge/truth_values.hpp"
#include "judge/twin_test.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::engine {

/// "zero", "the values of the token before", "the values of the next head"; empty where nothing of that kind
/// explains nine tenths of the error. `truth`: in the order of the answer's elements.
std::string likeness(const judge::Excess& excess, const judge::RowLayout& layout,
                     const judge::TruthValues& truth, const tensor::Tensor& answer);

}  // namespace kda_check::engine

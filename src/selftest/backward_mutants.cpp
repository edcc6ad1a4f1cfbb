#include "selftest/mutants.hpp"
#include "selftest/reference_backward.hpp"

namespace kda_check::selftest {

namespace {

using kda::GradientTensors;
using kda::Problem;
using kda::RunOptions;
using numeric::DType;

template <BackwardFault fault>
GradientTensors with(const Problem& problem, const RunOptions& options) {
  return reference_backward(problem, options, fault);
}

/// Masks after the exponentials: what lies above the diagonal overflows, and infinity times zero is NaN.
GradientTensors masked_late(const Problem& problem, const RunOptions& options) {
  RunOptions late = options;
  late.arithmetic.decay = kda::DecayForm::pair_late;
  return kda::run_chunk_backward(problem, late);
}

constexpr BackwardMutant rows[] = {
    {"gradients_again", "the chunk form backwards in other code", "chunk", DType::fp64, true,
     with<BackwardFault::none>},
    {"norm_dropped", "gradients of the normalised q and k", "chunk", DType::fp32, false,
     with<BackwardFault::norm_dropped>},
    {"norm_not_projected", "... divided by the norm only", "chunk", DType::fp32, false,
     with<BackwardFault::norm_not_projected>},
    {"gate_of_next_head", "the gate's derivative with A_log and dt_bias of another head", "chunk",
     DType::fp32, false, with<BackwardFault::gate_of_next_head>},
    {"inclusive_mask", "dAkk on and below the diagonal", "chunk", DType::fp32, false,
     with<BackwardFault::inclusive_mask>},
    {"first_token_masked", "no dg at the first token", "chunk", DType::fp32, false,
     with<BackwardFault::first_token>},
    {"unscaled_scores", "dAqk without scale", "chunk", DType::fp32, false,
     with<BackwardFault::unscaled_scores>},
    {"not_transposed", "A dA A for A^T dA A^T", "chunk", DType::fp32, false,
     with<BackwardFault::not_transposed>},
    {"last_of_group", "dq and dk of one value head for the sum over its group", "chunk", DType::fp32, false,
     with<BackwardFault::last_of_group>},
    {"bias_by_channel", "ddt_bias in the order of another layout", "chunk", DType::fp32, false,
     with<BackwardFault::bias_by_channel>},
    {"amplitude_not_raised", "dA_log as if it were dA", "chunk", DType::fp32, false,
     with<BackwardFault::amplitude_not_raised>},
    {"base_two", "dg of a gate in powers of two", "chunk", DType::fp32, false, with<BackwardFault::base_two>},
    {"early_rounding", "terms of dg in bf16 before they cancel", "chunk", DType::fp32, false,
     with<BackwardFault::early_rounding>},
    {"sigmoid_lost", "s (1 - s) for the derivative of a saturated gate", "chunk", DType::fp32, false,
     with<BackwardFault::sigmoid_lost>},
    {"state_gradient_lost", "dht is not read", "chunk", DType::fp32, false,
     with<BackwardFault::state_gradient_lost>},
    {"last_row_of_tile", "a ragged chunk loses what the state's decay adds to dg", "chunk", DType::fp32,
     false, with<BackwardFault::last_row_of_tile>},
    {"masked_late", "exponentials masked after they overflowed", "chunk", DType::fp32, false, masked_late},
};

}  // namespace

std::span<const BackwardMutant> backward_mutants() { return rows; }

}  // namespace kda_check::selftest

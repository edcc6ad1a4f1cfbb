// What the recurrence answers in fp32 when the log decays of a head are a little longer: how an answer
// changes with its decays.
#pragma once

#include <vector>

#include "kda/variants/variants.hpp"

namespace kda_check::kda {

/// To the value heads of one query head, as a problem of these alone would have it.
struct ScaledDecayAnswers {
  Answer slowest;           ///< with `factor` times the log decays of each head's slowest channel
  Answer all;               ///< ... of all its channels
  bool any_decays = false;  ///< of some head some channel; of the others nothing is scaled
};

/// `factor`: of few enough bits that its product with an fp32 number is rounded once.
ScaledDecayAnswers answers_with_scaled_decays(const Problem& problem, std::size_t query_head, float factor);

/// How the recurrence computes there, for who asks a GPU for the same (kda/variants/gpu_emulation.hpp).
RunOptions scaled_decay_options(const Problem& problem);

}  // namespace kda_check::kda

// Every stage of a chunk in double-double, forwards and backwards.
#include "kda/kernels/entries.hpp"
#include "kda/kernels/truth/stage_gradient_oracle.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

void stage_oracle(const StageOracleBlock& block) { stages_of_chunk(block); }
void stage_gradient_oracle(const StageGradientOracleBlock& block) { stage_gradients_of_chunk(block); }

}  // namespace kda_check::kda::KDA_CHECK_ISA

// The recurrence backwards in double-double.
#include "kda/kernels/gradient_oracle.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

void oracle_replay(const OracleReplayBlock& block) { replay_in<DoubleDoubleTile<eight_width>>(block); }
void oracle_backward(const OracleBackwardBlock& block) { backward_in<DoubleDoubleTile<eight_width>>(block); }
void oracle_replay_in_fp64(const OracleReplayBlock& block) { replay_in<DoubleTile<eight_width>>(block); }
void oracle_backward_in_fp64(const OracleBackwardBlock& block) {
  backward_in<DoubleTile<eight_width>>(block);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

// The recurrence backwards in double-double.
#include "kda/kernels/truth/gradient_oracle.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

template <class Tile>
void replay_of(const OracleReplayBlock& block) {
  block.strength.column_beta.hi != nullptr ? replay_in<Tile, true>(block) : replay_in<Tile, false>(block);
}
template <class Tile>
void backward_of(const OracleBackwardBlock& block) {
  if (block.strength.column_beta.hi != nullptr) return backward_in<Tile, true, false>(block);
  block.dread.hi != nullptr ? backward_in<Tile, false, true>(block) : backward_in<Tile, false, false>(block);
}

}  // namespace

void oracle_replay(const OracleReplayBlock& block) { replay_of<DoubleDoubleTile<eight_width>>(block); }
void oracle_backward(const OracleBackwardBlock& block) { backward_of<DoubleDoubleTile<eight_width>>(block); }
void oracle_replay_in_fp64(const OracleReplayBlock& block) { replay_of<DoubleTile<eight_width>>(block); }
void oracle_backward_in_fp64(const OracleBackwardBlock& block) {
  backward_of<DoubleTile<eight_width>>(block);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

// The recurrence in double-double, and the functions of the gates.
#include "kda/kernels/truth/oracle.hpp"
#include "kda/kernels/entries.hpp"
#include "kda/kernels/truth/gate_functions.hpp"
#include "kda/kernels/truth/oracle_elements.hpp"
#include "numeric/double_double_functions.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

/// Each in a function of its own, as large as it was alone: what the compiler does to a loop depends on it.
template <class Tile, bool has_column_betas, bool reads_along_key>
__attribute__((noinline)) void oracle_of(const OracleBlock& block) {
  oracle_tile<Tile, has_column_betas, reads_along_key>(block);
}

template <class Tile>
void oracle_in(const OracleBlock& block) {
  if (block.strength.column_beta.hi != nullptr) return oracle_of<Tile, true, true>(block);
  block.read.hi == block.k.hi ? oracle_of<Tile, false, true>(block) : oracle_of<Tile, false, false>(block);
}

}  // namespace

void oracle(const OracleBlock& block) { oracle_in<DoubleDoubleTile<oracle_tile_width>>(block); }
void oracle_in_fp64(const OracleBlock& block) { oracle_in<DoubleTile<oracle_tile_width>>(block); }

/// Two vectors: what one waits for the other fills.
using OraclePack = Lanes<double, 2>;
using OracleNumber = numeric::BasicDoubleDouble<OraclePack>;

namespace {

/// Applies `body` to packs of the array, the last one through a padded copy.
template <class Body>
KDA_CHECK_INLINE void over_packs(OracleLanes x, std::size_t count, Body body) {
  constexpr std::size_t step = OraclePack::count;
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    const OracleNumber result = body(OracleNumber{OraclePack::load(x.hi + i), OraclePack::load(x.lo + i)});
    result.hi.store(x.hi + i), result.lo.store(x.lo + i);
  }
  if (i < count) {
    const std::size_t used = count - i;
    double hi[step] = {}, lo[step] = {};
    for (std::size_t j = 0; j < used; ++j) {
      hi[j] = x.hi[i + j];
      lo[j] = x.lo[i + j];
    }
    const OracleNumber result = body(OracleNumber{OraclePack::load(hi), OraclePack::load(lo)});
    result.hi.store(hi);
    result.lo.store(lo);
    for (std::size_t j = 0; j < used; ++j) {
      x.hi[i + j] = hi[j];
      x.lo[i + j] = lo[j];
    }
  }
}

void add_bias(const OracleGateBlock& block) {
  if (block.bias.hi == nullptr) return;
  for (std::size_t i = 0; i < block.count; ++i) {
    const numeric::DoubleDouble y =
        biased_gate({block.g.hi[i], block.g.lo[i]}, {block.bias.hi[i], block.bias.lo[i]});
    block.g.hi[i] = y.hi;
    block.g.lo[i] = y.lo;
  }
}

}  // namespace

void oracle_exponential(OracleLanes x, std::size_t count) {
  over_packs(
      x, count, [](const OracleNumber& value) __attribute__((always_inline)) { return numeric::exp(value); });
}

void oracle_gate(const OracleGateBlock& block) {
  add_bias(block);
  const GateFunctions<OraclePack> gate(block.A_log);
  if (block.lower_bounded) {
    over_packs(
        block.g, block.count, [&](const OracleNumber& y) __attribute__((always_inline)) {
          return gate.bounded(y, block.lower_bound);
        });
  } else {
    over_packs(
        block.g,
        block.count, [&](const OracleNumber& y) __attribute__((always_inline)) { return gate.softplus(y); });
  }
}

void oracle_gate_slope(const OracleGateBlock& block) {
  add_bias(block);
  const GateFunctions<OraclePack> gate(block.A_log);
  if (block.lower_bounded) {
    over_packs(
        block.g, block.count, [&](const OracleNumber& y) __attribute__((always_inline)) {
          return gate.bounded_slope(y, block.lower_bound);
        });
  } else {
    over_packs(
        block.g, block.count, [&](const OracleNumber& y) __attribute__((always_inline)) {
          return gate.softplus_slope(y);
        });
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA

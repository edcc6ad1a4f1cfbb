// The recurrence in double-double, and the functions of the gates.
#include "kda/kernels/truth/oracle.hpp"

#include <algorithm>
#include <vector>

#include "kda/kernels/entries.hpp"
#include "kda/kernels/truth/decay_step.hpp"
#include "kda/kernels/truth/gate_functions.hpp"
#include "kda/kernels/truth/oracle_elements.hpp"
#include "kda/kernels/truth/row_norm.hpp"
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

/// Rows that are added up side by side, as each sum is a chain.
using SideBySide = Lanes<double, 1>;

/// Each factor times 1 / n of its row, in the operations of RowNorm. False, and nothing is done: a row has
/// elements whose squares may be beyond the range.
bool times_reciprocals(const double* rows, std::size_t count, std::size_t K, numeric::DoubleDouble* factors) {
  using Number = numeric::BasicDoubleDouble<SideBySide>;
  for (std::size_t i = 0; i < count * K; ++i)
    if (!(numeric::absolute(rows[i]) <= large_element)) return false;
  constexpr numeric::DoubleDouble epsilon = numeric::DoubleDouble{1.0} / numeric::DoubleDouble{1e6};
  Number sum = numeric::detail::spread<SideBySide>(epsilon);
  double column[SideBySide::count] = {}, low[SideBySide::count];
  for (std::size_t k = 0; k < K; ++k) {
    for (std::size_t row = 0; row < count; ++row) column[row] = rows[row * K + k];
    const SideBySide x = SideBySide::load(column);
    sum = sum + numeric::two_product(x, x);
  }
  sum.hi.store(column), sum.lo.store(low);
  for (std::size_t row = 0; row < count; ++row)
    factors[row] =
        factors[row] * numeric::reciprocal_square_root(numeric::DoubleDouble{column[row], low[row]});
  return true;
}

/// x, exact in its high parts, times a factor.
void times(numeric::DoubleDouble factor, OracleLanes x, std::size_t count) {
  const OracleNumber of_all = numeric::detail::spread<OraclePack>(factor);
  std::size_t i = 0;
  for (; i + OraclePack::count <= count; i += OraclePack::count) {
    const OracleNumber product = of_all * OraclePack::load(x.hi + i);
    product.hi.store(x.hi + i), product.lo.store(x.lo + i);
  }
  for (; i < count; ++i) {
    const numeric::DoubleDouble product = factor * x.hi[i];
    x.hi[i] = product.hi, x.lo[i] = product.lo;
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

void oracle_keys(const OracleKeyBlock& block) {
  const std::size_t K = block.key_dim;
  for (std::size_t first = 0; first < block.rows; first += SideBySide::count) {
    const std::size_t count = std::min(SideBySide::count, block.rows - first);
    numeric::DoubleDouble factors[SideBySide::count];
    std::fill_n(factors, count, block.factor);
    const bool together = !block.has_norm || times_reciprocals(block.x.hi + first * K, count, K, factors);
    for (std::size_t row = first; row < first + count; ++row) {
      double *const hi = block.x.hi + row * K, *const lo = block.x.lo + row * K;
      if (together) {
        times(factors[row - first], {hi, lo}, K);
        continue;
      }
      const RowNorm norm = RowNorm::of(hi, K);
      for (std::size_t k = 0; k < K; ++k) {
        const numeric::DoubleDouble y = norm.normalised(block.factor, hi[k]);
        hi[k] = y.hi, lo[k] = y.lo;
      }
    }
  }
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

namespace {

/// The decays of a row that `step` is sure of; returns where it is not.
template <class Step>
KDA_CHECK_INLINE std::vector<std::size_t> sure_decays(const OracleGateBlock& block, const Step& step) {
  constexpr std::size_t lanes = OraclePack::count;
  std::vector<std::size_t> unsure;
  double raw[lanes] = {}, bias[lanes] = {}, decay[lanes];
  for (std::size_t i = 0; i < block.count; i += lanes) {
    const std::size_t used = std::min(lanes, block.count - i);
    std::copy_n(block.g.hi + i, used, raw);
    if (block.bias.hi != nullptr) std::copy_n(block.bias.hi + i, used, bias);
    const auto rounded = step(numeric::two_sum(OraclePack::load(raw), OraclePack::load(bias)));
    rounded.value.store(decay);
    const bool all_sure = all(rounded.sure);
    for (std::size_t lane = 0; lane < used; ++lane)
      if (all_sure || lane_of(rounded.sure, lane))
        block.g.hi[i + lane] = decay[lane];
      else
        unsure.push_back(i + lane);
  }
  return unsure;
}

}  // namespace

void oracle_decay(const OracleGateBlock& block) {
  const DecaySteps<OraclePack> steps(block.A_log, block.lower_bound);
  const std::vector<std::size_t> unsure =
      !block.has_gate ? sure_decays(
                            block, [&](const OracleNumber& y)
                                       __attribute__((always_inline)) { return steps.stored(y.hi); })
      : block.lower_bounded
          ? sure_decays(
                block, [&](const OracleNumber& y) __attribute__((always_inline)) { return steps.bounded(y); })
          : sure_decays(
                block, [&](const OracleNumber& y)
                           __attribute__((always_inline)) { return steps.softplus(y); });
  if (unsure.empty()) return;
  const std::size_t count = unsure.size();
  std::vector<double> hi(count), lo(count), bias(count), none(count);
  for (std::size_t i = 0; i < count; ++i) {
    hi[i] = block.g.hi[unsure[i]];
    if (block.bias.hi != nullptr) bias[i] = block.bias.hi[unsure[i]];
  }
  OracleGateBlock rest = block;
  rest.count = count, rest.g = {hi.data(), lo.data()};
  if (block.bias.hi != nullptr) rest.bias = {bias.data(), none.data()};
  if (block.has_gate) oracle_gate(rest);
  oracle_exponential(rest.g, count);
  for (std::size_t i = 0; i < count; ++i) block.g.hi[unsure[i]] = hi[i];
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

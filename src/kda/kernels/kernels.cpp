// Compiled once for each instruction set, KDA_CHECK_ISA naming it (src/kda/CMakeLists.txt). Everything here
// lives in that namespace and is inlined or local, so that no instruction of one set ends up in another's
// table.
#include "kda/kernels/chain_rules.hpp"
#include "kda/kernels/chunk.hpp"
#include "kda/kernels/chunk_backward.hpp"
#include "kda/kernels/exponential.hpp"
#include "kda/kernels/gradient_oracle.hpp"
#include "kda/kernels/naive.hpp"
#include "kda/kernels/oracle.hpp"
#include "kda/kernels/prepare.hpp"
#include "kda/kernels/recurrent.hpp"
#include "kda/kernels/recurrent_backward.hpp"
#include "kda/kernels/stage_gradient_oracle.hpp"
#include "kda/kernels/stage_oracle.hpp"
#include "kda/kernels/table.hpp"
#include "kda/kernels/token.hpp"
#include "kda/kernels/token_backward.hpp"
#include "numeric/double_double_functions.hpp"

#define KDA_CHECK_STRINGIFY(x) #x
#define KDA_CHECK_NAME_OF(x) KDA_CHECK_STRINGIFY(x)

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

// Two registers a row keep both multiply-add units busy: four chains of dependent sums, eight operations a
// row. No fewer than 16 lanes, which is what the kernels for any arithmetic take at a time.
template <class T>
constexpr int tile_width = sixteen_width<T> > 2 ? sixteen_width<T> : 2;
constexpr int oracle_tile_width = 1;

template <class T, bool is_fused>
void run_naive(const NaiveBlock<T>& block) {
  naive_block<T, is_fused>(block);
}
template <class T, bool is_fused>
void run_recurrent(const RecurrentBlock<T>& block) {
  recurrent_tile<T, tile_width<T>, is_fused>(block);
}
template <class T, bool is_fused>
void run_replay(const ColumnsBlock<T>& block) {
  replay_tile<T, tile_width<T>, is_fused>(block);
}
template <class T, bool is_fused>
void run_column_gradients(const ColumnsBlock<T>& block) {
  column_gradients_tile<T, tile_width<T>, is_fused>(block);
}
template <class T, bool is_fused>
void run_row_gradients(const RowsBlock<T>& block) {
  row_gradients_tile<T, tile_width<T>, is_fused>(block);
}
template <class T, bool is_fused>
void run_chunk(const ChunkBlock<T>& block) {
  chunk_forward<T, is_fused>(block);
}
template <class T, bool is_fused>
void run_chunk_backward(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block) {
  chunk_backward<T, is_fused>(chunk, block);
}
template <class T>
void run_exponential(Exponential kind, const T* x, T* y, std::size_t count) {
  exponential(kind, x, y, count);
}
template <class T>
void run_cumulate(const Reduction& reduction, T* x, std::size_t rows, std::size_t stride) {
  cumulate(reduction, x, rows, stride);
}
template <class T>
void run_token(const TokenBlock<T>& block) {
  token_block(block);
}
template <class T>
void run_round(Rounding rounding, T* x, std::size_t count) {
  round_array(rounding, x, count);
}
template <class T>
void run_widen(numeric::DType dtype, const void* source, T* target, std::size_t count) {
  widen<T>(dtype, source, target, count);
}
template <class T>
void run_narrow(const T* source, numeric::DType dtype, void* target, std::size_t count) {
  narrow<T>(source, dtype, target, count);
}
template <class T>
void run_gate(const GateBlock<T>& block) {
  gate<T>(block);
}
template <class T>
void run_normalise(const NormBlock<T>& block) {
  normalise<T>(block);
}

void run_oracle(const OracleBlock& block) { oracle_tile<DoubleDoubleTile<oracle_tile_width>>(block); }
void run_oracle_in_fp64(const OracleBlock& block) { oracle_tile<DoubleTile<oracle_tile_width>>(block); }

void run_stage_oracle(const StageOracleBlock& block) { stage_oracle(block); }
void run_stage_gradient_oracle(const StageGradientOracleBlock& block) { stage_gradient_oracle(block); }

template <template <int> class Tile>
void run_oracle_replay(const OracleReplayBlock& block) {
  oracle_replay<Tile<eight_width>>(block);
}
template <template <int> class Tile>
void run_oracle_backward(const OracleBackwardBlock& block) {
  oracle_backward<Tile<eight_width>>(block);
}

using OraclePack = Lanes<double, oracle_tile_width>;
using OracleNumber = numeric::BasicDoubleDouble<OraclePack>;

/// Applies `body` to packs of the array, the last one through a padded copy.
template <class Body>
KDA_CHECK_INLINE void over_packs(OracleLanes x, std::size_t count, Body body) {
  constexpr std::size_t step = OraclePack::count;
  for (std::size_t i = 0; i < count; i += step) {
    const std::size_t used = count - i < step ? count - i : step;
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

void run_oracle_exponential(OracleLanes x, std::size_t count) {
  over_packs(
      x, count, [](const OracleNumber& value) __attribute__((always_inline)) { return numeric::exp(value); });
}

void add_bias(const OracleGateBlock& block) {
  if (block.bias.hi == nullptr) return;
  for (std::size_t i = 0; i < block.count; ++i) {
    const numeric::DoubleDouble y = numeric::DoubleDouble{block.g.hi[i], block.g.lo[i]} +
                                    numeric::DoubleDouble{block.bias.hi[i], block.bias.lo[i]};
    block.g.hi[i] = y.hi;
    block.g.lo[i] = y.lo;
  }
}

void run_oracle_gate(const OracleGateBlock& block) {
  add_bias(block);
  const OracleNumber amplitude{OraclePack::broadcast(block.amplitude_hi),
                               OraclePack::broadcast(block.amplitude_lo)};
  if (block.lower_bounded) {
    const OraclePack bound = OraclePack::broadcast(block.lower_bound);
    over_packs(
        block.g, block.count, [&](const OracleNumber& y) __attribute__((always_inline)) {
          return numeric::sigmoid(amplitude * y) * bound;
        });
  } else {
    over_packs(
        block.g, block.count, [&](const OracleNumber& y) __attribute__((always_inline)) {
          return -(amplitude * numeric::softplus(y));
        });
  }
}

void run_oracle_gate_slope(const OracleGateBlock& block) {
  add_bias(block);
  const OracleNumber amplitude{OraclePack::broadcast(block.amplitude_hi),
                               OraclePack::broadcast(block.amplitude_lo)};
  if (block.lower_bounded) {
    const OracleNumber factor = amplitude * OraclePack::broadcast(block.lower_bound);
    over_packs(
        block.g, block.count, [&](const OracleNumber& y) __attribute__((always_inline)) {
          const OracleNumber x = amplitude * y;
          return factor * (numeric::sigmoid(x) * numeric::sigmoid(-x));
        });
  } else {
    over_packs(
        block.g, block.count, [&](const OracleNumber& y) __attribute__((always_inline)) {
          return -(amplitude * numeric::sigmoid(y));
        });
  }
}

template <class T>
double fma_burst(long iterations, T* values) {
  using Pack = Lanes<T, 4>;
  // Twelve chains: enough for two units of latency four, and the registers hold them.
  Pack a = Pack::load(values), b = Pack::load(values + Pack::count), c = Pack::load(values + 2 * Pack::count);
  const Pack addend = Pack::broadcast(T(1e-9));
  for (long i = 0; i < iterations; ++i) {
    a = multiply_add<true>(T(0.999), a, addend);
    b = multiply_add<true>(T(0.999), b, addend);
    c = multiply_add<true>(T(0.999), c, addend);
  }
  a.store(values);
  b.store(values + Pack::count);
  c.store(values + 2 * Pack::count);
  return 2.0 * 3 * static_cast<double>(Pack::count) * static_cast<double>(iterations);
}

bool keeps_roundings_apart(float x, float y, float z) {
  // (1 + e)^2 - (1 + 2e): zero when the product is rounded first.
  const Lanes<float, 1> product = Lanes<float, 1>::broadcast(x) * Lanes<float, 1>::broadcast(y);
  float lanes[Lanes<float, 1>::count];
  (product + Lanes<float, 1>::broadcast(z)).store(lanes);
  const float scalar = x * y;
  return lanes[0] == 0 && scalar + z == 0;
}

template <class T>
void run_row_dots(const RowDotsBlock<T>& block) {
  row_dots<T>(block);
}
template <class T>
void run_normalise_gradient(const NormGradientBlock<T>& block) {
  normalise_gradient<T>(block);
}
template <class T>
void run_gate_gradient(const GateGradientBlock<T>& block) {
  gate_gradient<T>(block);
}

template <class T, bool is_fused>
constexpr TokenBackwardKernels<T> token_backward_kernels{
    run_replay<T, is_fused>, run_column_gradients<T, is_fused>, run_row_gradients<T, is_fused>};

template <class T>
constexpr Kernels<T> kernels_for() {
  constexpr std::size_t lanes = Lanes<T, tile_width<T>>::count;
  return {lanes,
          run_widen<T>,
          run_narrow<T>,
          run_exponential<T>,
          run_gate<T>,
          run_normalise<T>,
          run_round<T>,
          run_cumulate<T>,
          run_token<T>,
          {run_naive<T, false>, run_naive<T, true>},
          {run_recurrent<T, false>, run_recurrent<T, true>},
          {run_chunk<T, false>, run_chunk<T, true>},
          {run_chunk_backward<T, false>, run_chunk_backward<T, true>},
          {token_backward_kernels<T, false>, token_backward_kernels<T, true>},
          {replay_block<T, lanes>, column_gradients_block<T, lanes>, row_gradients_block<T, lanes>},
          run_row_dots<T>,
          run_normalise_gradient<T>,
          run_gate_gradient<T>};
}

}  // namespace

extern const KernelTable table;
const KernelTable table{
    KDA_CHECK_NAME_OF(KDA_CHECK_ISA),
    kernels_for<float>(),
    kernels_for<double>(),
    {OraclePack::count, run_oracle, run_oracle_in_fp64, run_oracle_exponential, run_oracle_gate,
     run_stage_oracle, run_oracle_gate_slope, run_oracle_replay<DoubleDoubleGradient>,
     run_oracle_backward<DoubleDoubleGradient>, run_oracle_replay<DoubleGradient>,
     run_oracle_backward<DoubleGradient>, run_stage_gradient_oracle},
    fma_burst<float>,
    fma_burst<double>,
    keeps_roundings_apart,
};

}  // namespace kda_check::kda::KDA_CHECK_ISA

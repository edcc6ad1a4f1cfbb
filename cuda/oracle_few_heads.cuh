// The recurrence of the oracle where there are few heads: each token has to be done soon, and processors
// there are more than enough. A block has 4, 8 or 16 columns of the state of a head, a lane as many rows of
// one of them as make sixteen a warp. The warps leave the terms of both sums in shared memory, where two more
// add them up, a lane a column: that of the prediction, which all wait for, and that of the output, which
// nobody does.
#pragma once

#include "oracle_block.cuh"

namespace kda_check::cuda {

constexpr int oracle_adders = 2;    ///< warps behind those of the state
constexpr int widest_of_few = 128;  ///< K: wider ones would leave too few registers

/// Shared memory of a block, in doubles, in this order.
template <int columns>
struct OracleFewShared {
  int warps, rows, values, written, terms, barriers;

  __host__ __device__ explicit OracleFewShared(int K)
      : warps(oracle_warps(K)),
        rows(OracleRows::size(K)),
        values(OracleValues<columns>::size()),
        written(4 * columns),  // three, and what aligns what is behind
        terms(warps * oracle_rows * columns * 2),
        barriers(4) {}
  __host__ __device__ std::size_t bytes() const {
    return sizeof(double) * std::size_t(rows + values + written + 2 * terms + barriers);
  }
};

template <class Step, int columns>
class OracleFew {
 public:
  using Number = typename Step::Number;
  using Term = typename Step::Term;
  static constexpr int parts = warp_lanes / columns, rows = oracle_rows / parts;  ///< of a lane
  static_assert(sizeof(Term) == 16);

  __device__ OracleFew(const OraclePortion& p, double* memory)
      : shared_(p.K),
        place_(p, columns),
        lane_(static_cast<int>(threadIdx.x) % warp_lanes),
        warp_(static_cast<int>(threadIdx.x) / warp_lanes),
        first_row_(lane_ / columns * rows),
        column_(lane_ % columns),
        inputs_(memory, warp_ < shared_.warps ? warp_ : 0),
        values_(memory + shared_.rows) {
    // Rows beyond K and columns beyond V are zeros.
    for (int i = static_cast<int>(threadIdx.x); i < shared_.rows + shared_.values; i += blockDim.x)
      memory[i] = 0;
    written_ = memory + shared_.rows + shared_.values + column_;
    outputs_ = reinterpret_cast<Term*>(memory + shared_.rows + shared_.values + shared_.written);
    predictions_ = outputs_ + shared_.terms / 2;
    ChainBarrier* const barriers = reinterpret_cast<ChainBarrier*>(predictions_ + shared_.terms / 2);
    outputs_are_there_ = barriers, predictions_are_there_ = barriers + 1;
    outputs_are_free_ = barriers + 2, write_is_there_ = barriers + 3;
    if (threadIdx.x == 0) {
      outputs_are_there_->begin(shared_.warps), predictions_are_there_->begin(shared_.warps);
      outputs_are_free_->begin(1), write_is_there_->begin(1);
    }
    __syncthreads();
  }

  __device__ void run() {
    if (warp_ < shared_.warps) return follow_state();
    if (warp_ == shared_.warps) return add_predictions();
    add_outputs();
  }

 private:
  __device__ int row(int r) const { return warp_ * oracle_rows + first_row_ + r; }

  __device__ void follow_state() {
    Number state[rows];
    double magnitude[rows];
    inputs_.fetch(place_, 0);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      state[r] = load_state<Step>(place_, row(r), place_.first_column + column_, magnitude[r]);
    wait_for_copies();
    __syncwarp();
    for (int t = -1; t < place_.tokens(); ++t) {
      inputs_.fetch(place_, t + 2);
      if (t >= 0) {
        write_is_there_->wait(t);
        const auto token = OracleWrite<Step>::load(written_, columns);
        const ChannelPairs* const x = inputs_.at(t) + first_row_;
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          state[r] = Step::updated(Step::of(x[r].k_hi, x[r].k_lo), token.write, state[r]);
          magnitude[r] = kda::updated_magnitude(magnitude[r], token.magnitude, x[r].retained, x[r].written);
        }
      }
      Number decayed[rows];
      if (t + 1 < place_.tokens()) {
        const ChannelPairs* const x = inputs_.at(t + 1) + first_row_;
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          decayed[r] = Step::scaled(state[r], Step::of(x[r].decay_hi, x[r].decay_lo));
          predictions_[row(r) * columns + column_] = Step::term(Step::of(x[r].k_hi, x[r].k_lo), decayed[r]);
          magnitude[r] = magnitude[r] * x[r].decay_hi;
        }
        predictions_are_there_->arrive();
      }
      if (t >= 0) {
        const ChannelPairs* const x = inputs_.at(t) + first_row_;
        if (t > 0) outputs_are_free_->wait(t - 1);
#pragma unroll
        for (int r = 0; r < rows; ++r)
          outputs_[row(r) * columns + column_] = Step::term(Step::of(x[r].q_hi, x[r].q_lo), state[r]);
        outputs_are_there_->arrive();
      }
      if (t + 1 < place_.tokens())
#pragma unroll
        for (int r = 0; r < rows; ++r) state[r] = decayed[r];
      wait_for_copies();
      __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < rows; ++r)
      store_state<Step>(place_, row(r), place_.first_column + column_, state[r], magnitude[r]);
  }

  /// From the first row to the last; by all lanes, for those of the columns. As many lanes behind them add up
  /// sizes while they add up values: to the processor it is one addition.
  __device__ Number sum_of(const Term* terms, double& magnitude) const {
    const bool adds_sizes = lane_ >= columns;
    double high = 0, low = 0;
#pragma unroll 64
    for (int k = 0; k < place_.p.K; ++k) {
      const Term stored = terms[k * columns + column_], size = Step::size_of(stored);
      const numeric::DoubleDouble step = Step::added(high, adds_sizes ? size : stored);
      high = step.hi;
      if constexpr (Step::has_low) low = low + step.lo;
    }
    magnitude = __shfl_down_sync(whole_warp, high, columns);
    return Step::of(high, low);
  }

  __device__ void add_predictions() {
    values_.fetch(place_, 0);
    wait_for_copies();
    __syncwarp();
    for (int t = 0; t < place_.tokens(); ++t) {
      values_.fetch(place_, t + 1);
      predictions_are_there_->wait(t);
      double magnitude = 0;
      const Number sum = sum_of(predictions_, magnitude);
      if (lane_ < columns)
        OracleWrite<Step>::of(values_.value(t, column_), sum, magnitude,
                              Step::of(values_.beta_hi(t), values_.beta_lo(t)))
            .store(written_, columns);
      write_is_there_->arrive();
      wait_for_copies();
      __syncwarp();
    }
  }

  __device__ void add_outputs() {
    for (int t = 0; t < place_.tokens(); ++t) {
      outputs_are_there_->wait(t);
      double magnitude = 0;
      const Number sum = sum_of(outputs_, magnitude);
      outputs_are_free_->arrive();
      if (lane_ < columns) store_output<Step>(place_, t, place_.first_column + column_, sum, magnitude);
    }
  }

  const OracleFewShared<columns> shared_;
  const OraclePlace place_;
  const int lane_, warp_, first_row_, column_;
  OracleRows inputs_;
  OracleValues<columns> values_;
  double* written_;
  Term *outputs_, *predictions_;
  ChainBarrier *outputs_are_there_, *predictions_are_there_, *outputs_are_free_, *write_is_there_;
};

template <class Step, int columns>
__global__ void __launch_bounds__((widest_of_few / oracle_rows + oracle_adders) * warp_lanes, 1)
    oracle_few_heads(const __grid_constant__ OraclePortion p) {
  extern __shared__ __align__(16) double oracle_memory[];
  if (p.ranges[blockIdx.z].count > 0) OracleFew<Step, columns>(p, oracle_memory).run();
}

}  // namespace kda_check::cuda

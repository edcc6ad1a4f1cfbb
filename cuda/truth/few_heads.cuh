// The recurrence of the oracle where there are few heads: each token has to be done soon, and processors
// there are more than enough. A block has 2, 4, 8 or 16 columns of the state of a head, a lane as many rows
// of one of them as make sixteen a warp. The warps leave the terms of both sums in shared memory, where two
// more add them up: that of the prediction, which all wait for, and that of the output, which nobody does.
#pragma once

#include "cuda/truth/adder.cuh"

namespace kda_check::cuda {

constexpr int oracle_adders = 2;    ///< warps behind those of the state
constexpr int widest_of_few = 128;  ///< K: wider ones would leave too few registers

/// Shared memory of a block, in doubles, in this order.
template <class Step, int columns>
struct OracleFewShared {
  int warps, rows, values, written, terms, noted, barriers;

  __host__ __device__ explicit OracleFewShared(int K)
      : warps(oracle_warps(K)),
        rows(OracleRows::size(K)),
        values(OracleValues<columns>::size()),
        written(4 * columns),  // three, and what aligns what is behind
        terms(OracleTerms<Step, columns>::size(K)),
        noted(OracleAdder<Step, columns>::size()),
        barriers(4) {}
  __host__ __device__ int size() const {
    return rows + values + written + oracle_adders * (terms + noted) + barriers;
  }
  __host__ __device__ std::size_t bytes() const { return sizeof(double) * std::size_t(size()); }
};

template <class Step, int columns>
class OracleFew {
 public:
  using Number = typename Step::Number;
  using Terms = OracleTerms<Step, columns>;
  static constexpr int parts = warp_lanes / columns, rows = oracle_rows / parts;  ///< of a lane

  __device__ OracleFew(const OraclePortion& p, double* memory)
      : shared_(p.K),
        place_(p, columns),
        lane_(static_cast<int>(threadIdx.x) % warp_lanes),
        warp_(static_cast<int>(threadIdx.x) / warp_lanes),
        first_row_(lane_ / columns * rows),
        column_(lane_ % columns),
        inputs_(memory, warp_ < shared_.warps ? warp_ : 0),
        values_(memory + shared_.rows),
        written_(memory + shared_.rows + shared_.values),
        noted_(written_ + shared_.written + oracle_adders * shared_.terms),
        outputs_(written_ + shared_.written, p.K),
        predictions_(written_ + shared_.written + shared_.terms, p.K) {
    // Rows beyond K and columns beyond V are zeros.
    for (int i = static_cast<int>(threadIdx.x); i < shared_.size(); i += blockDim.x) memory[i] = 0;
    __syncthreads();
    ChainBarrier* const barriers =
        reinterpret_cast<ChainBarrier*>(memory + shared_.size()) - shared_.barriers;
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
  /// What a token has for the rows of a lane: in registers ahead of what they wait for, where these are few.
  struct RowsAhead {
    ChannelPairs x[rows];
    __device__ const ChannelPairs& operator[](int r) const { return x[r]; }
  };
  static constexpr bool looks_ahead = rows <= 2;
  using Channels = std::conditional_t<looks_ahead, RowsAhead, const ChannelPairs*>;
  __device__ Channels channels(int t) const {
    const ChannelPairs* const there = inputs_.at(t) + first_row_;
    if constexpr (!looks_ahead) {
      return there;
    } else {
      RowsAhead ahead;
#pragma unroll
      for (int r = 0; r < rows; ++r) ahead.x[r] = there[r];
      return ahead;
    }
  }

  __device__ int row(int r) const { return warp_ * oracle_rows + first_row_ + r; }
  __device__ void leave(const Terms& terms, int r, const typename Step::Term& term) const {
    if (row(r) < place_.p.K) terms.store(row(r), column_, term);
  }

  __device__ void follow_state() {
    Number state[rows];
    double magnitude[rows];
    inputs_.fetch(place_, 0);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      state[r] = load_state<Step>(place_, row(r), place_.first_column + column_, magnitude[r]);
    wait_for_copies();
    __syncwarp();
    Channels now{}, next = channels(0);
    for (int t = -1; t < place_.tokens(); ++t) {
      inputs_.fetch(place_, t + 2);
      double written = 0;
      if (t >= 0) {
        write_is_there_->wait(t);
        const auto token = OracleWrite<Step>::load(written_ + column_, columns);
        written = token.magnitude;
#pragma unroll
        for (int r = 0; r < rows; ++r)
          state[r] = Step::updated(Step::of(now[r].k_hi, now[r].k_lo), token.write, state[r]);
      }
      Number decayed[rows];
      if (t + 1 < place_.tokens()) {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          decayed[r] = Step::scaled(state[r], Step::of(next[r].decay_hi, next[r].decay_lo));
          leave(predictions_, r, Step::term(Step::of(next[r].k_hi, next[r].k_lo), decayed[r]));
        }
        predictions_are_there_->arrive();
      }
      if (t >= 0) {
        if (t > 0) outputs_are_free_->wait(t - 1);
#pragma unroll
        for (int r = 0; r < rows; ++r)
          leave(outputs_, r, Step::term(Step::of(now[r].q_hi, now[r].q_lo), state[r]));
        outputs_are_there_->arrive();
#pragma unroll
        for (int r = 0; r < rows; ++r)
          magnitude[r] = kda::updated_magnitude(magnitude[r], written, now[r].retained, now[r].written);
      }
      if (t + 1 < place_.tokens())
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          state[r] = decayed[r];
          magnitude[r] = magnitude[r] * next[r].decay_hi;
        }
      wait_for_copies();
      __syncwarp();
      now = next, next = channels(t + 2);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r)
      store_state<Step>(place_, row(r), place_.first_column + column_, state[r], magnitude[r]);
  }

  __device__ void add_predictions() {
    const OracleAdder<Step, columns> adder(noted_, predictions_, place_.p.K);
    values_.fetch(place_, 0);
    wait_for_copies();
    __syncwarp();
    for (int t = 0; t < place_.tokens(); ++t) {
      values_.fetch(place_, t + 1);
      const double value = values_.value(t, column_);
      const Number beta = Step::of(values_.beta_hi(t), values_.beta_lo(t));
      predictions_are_there_->wait(t);
      double magnitude = 0;
      const Number sum = adder.sum(magnitude);
      const auto token = OracleWrite<Step>::of(value, sum, magnitude, beta);
      if (lane_ < columns) token.store(written_ + column_, columns);
      write_is_there_->arrive();
      wait_for_copies();
      __syncwarp();
    }
  }

  __device__ void add_outputs() {
    const OracleAdder<Step, columns> adder(noted_ + shared_.noted, outputs_, place_.p.K);
    for (int t = 0; t < place_.tokens(); ++t) {
      outputs_are_there_->wait(t);
      double magnitude = 0;
      const Number sum = adder.sum(magnitude);
      outputs_are_free_->arrive();
      if (lane_ < columns) store_output<Step>(place_, t, place_.first_column + column_, sum, magnitude);
    }
  }

  const OracleFewShared<Step, columns> shared_;
  const OraclePlace place_;
  const int lane_, warp_, first_row_, column_;
  OracleRows inputs_;
  OracleValues<columns> values_;
  double *written_, *noted_;
  const Terms outputs_, predictions_;
  ChainBarrier *outputs_are_there_, *predictions_are_there_, *outputs_are_free_, *write_is_there_;
};

template <class Step, int columns>
__global__ void __launch_bounds__((widest_of_few / oracle_rows + oracle_adders) * warp_lanes, 1)
    oracle_few_heads(const __grid_constant__ OraclePortion p) {
  extern __shared__ __align__(16) double oracle_memory[];
  if (p.ranges[blockIdx.z].count > 0) OracleFew<Step, columns>(p, oracle_memory).run();
}

}  // namespace kda_check::cuda

// The recurrence of the oracle (src/kda/kernels/truth/oracle_step.hpp has its arithmetic). A block has 32
// columns of the state of a head, a lane sixteen rows of one of them, in registers.
//
// Sums over k run from the first row to the last, so from warp to warp: what is before its rows each gets
// from the warp before it. Little of a sum depends on that. Of a running sum in double-double it is the high
// part, one addition a row; what each addition loses, and what the product has beyond its high part, is known
// as soon as the high part before it is, and the low part is the sum of that, another addition a row. So a
// sum takes two passes from warp to warp, and while one warp has its turn the others multiply, decay or catch
// what additions lose. The last warp has the sums, and hands back what is to be written.
#pragma once

#include "cuda/truth/block.cuh"

namespace kda_check::cuda {

enum class Sum : int { output, prediction };
constexpr int oracle_sums = 2, oracle_passes = 2;  ///< passes: of high parts with magnitudes, of low parts

/// Shared memory of a block, in doubles, in this order.
struct OracleShared {
  int warps, rows, values, written, handed, magnitudes, barriers;

  __host__ __device__ explicit OracleShared(int K)
      : warps(oracle_warps(K)),
        rows(OracleRows::size(K)),
        values(OracleValues::size()),
        written(5 * warp_lanes),
        handed(oracle_sums * (warps + 1) * 3 * warp_lanes),
        magnitudes(oracle_rows * warps * warp_lanes),
        barriers(oracle_sums * oracle_passes * warps + 1) {}
  __host__ __device__ std::size_t bytes() const {
    return sizeof(double) * std::size_t(rows + values + written + handed + magnitudes + barriers);
  }
};

template <class Step>
class OracleWarp {
 public:
  using Number = typename Step::Number;
  using Term = typename Step::Term;
  static constexpr int rows = oracle_rows;

  __device__ OracleWarp(const OraclePortion& p, double* memory)
      : shared_(p.K),
        place_(p),
        lane_(static_cast<int>(threadIdx.x) % warp_lanes),
        warp_(static_cast<int>(threadIdx.x) / warp_lanes),
        column_(place_.first_column + lane_),
        inputs_(memory, warp_),
        values_(memory + shared_.rows) {
    // Rows beyond K and columns beyond V are zeros.
    for (int i = static_cast<int>(threadIdx.x); i < shared_.rows + shared_.values; i += blockDim.x)
      memory[i] = 0;
    written_ = memory + shared_.rows + shared_.values + lane_;
    handed_ = memory + shared_.rows + shared_.values + shared_.written + lane_;
    double* const magnitudes = memory + shared_.rows + shared_.values + shared_.written + shared_.handed;
    magnitudes_ = magnitudes + warp_ * rows * warp_lanes + lane_;
    barriers_ = reinterpret_cast<ChainBarrier*>(magnitudes + shared_.magnitudes);
    if (threadIdx.x == 0)
      for (int i = 0; i < shared_.barriers; ++i) barriers_[i].begin(1);
    __syncthreads();
  }

  __device__ void run() {
    fetch(0);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      state_[r] = load_state<Step>(place_, warp_ * rows + r, column_, magnitude(r));
    if (has_errors()) error_.of_state = column_ < place_.p.V ? place_.p.errors[column_at()] : 0.0;
    wait_for_copies();
    __syncwarp();
    // Before the first token there is its decay and its prediction alone.
    for (int t = -1; t < place_.tokens(); ++t) {
      fetch(t + 2);
      const bool is_token = t >= 0, has_next = t + 1 < place_.tokens();
      if (is_token) {
        update(t);
        add_up<Sum::output>(t);
      }
      if (has_next) {
        decay(t + 1);
        add_up<Sum::prediction>(t + 1);
      }
      if (is_last()) finish(t, is_token, has_next);
      wait_for_copies();
      __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < rows; ++r)
      store_state<Step>(place_, warp_ * rows + r, column_, state_[r], magnitude(r));
    if (has_errors()) store_errors();
  }

 private:
  /// Errors of columns are the last warp's, those of elements everybody's.
  __device__ bool has_errors() const { return !Step::has_low && place_.p.errors != nullptr; }
  __device__ std::size_t column_at() const {
    return (std::size_t(blockIdx.z) * place_.p.heads + place_.head) * place_.p.V + column_;
  }
  __device__ void store_errors() {
    if (is_last() && column_ < place_.p.V) place_.p.errors[column_at()] = error_.of_state;
    // As integers numbers that are not negative have their order.
    const auto take = [](double x, double* most) {
      atomicMax(reinterpret_cast<unsigned long long*>(most),
                static_cast<unsigned long long>(__double_as_longlong(x)));
    };
    take(of_output_, place_.p.worst);
    take(of_elements_, place_.p.worst + 1);
  }

  __device__ bool is_last() const { return warp_ == shared_.warps - 1; }
  __device__ ChainBarrier& barrier(Sum sum, int pass, int warp) {
    return barriers_[oracle_passes * (oracle_sums * warp + static_cast<int>(sum)) + pass];
  }
  __device__ ChainBarrier& write_is_there() { return barriers_[shared_.barriers - 1]; }
  /// Three numbers: high part, magnitude and low part of what is before the rows of `warp`; behind the last
  /// one the sum.
  __device__ double* handed(Sum sum, int warp) {
    return handed_ + (static_cast<int>(sum) * (shared_.warps + 1) + warp) * 3 * warp_lanes;
  }
  __device__ double& magnitude(int r) { return magnitudes_[r * warp_lanes]; }
  __device__ bool has_row(int r) const { return warp_ * rows + r < place_.p.K; }
  /// Behind the last row there is nothing to do. It is a branch all the same where rows are many: without one
  /// the compiler works on so many at once that it runs out of registers.
  __device__ bool leaves(int r) const { return r % 4 == 0 && !has_row(r); }

  __device__ void fetch(int t) {
    inputs_.fetch(place_, t);
    if (is_last()) values_.fetch(place_, t);
  }

  __device__ void update(int t) {
    write_is_there().wait(t);
    const auto token = OracleWrite<Step>::load(written_);
    const ChannelPairs* const x = inputs_.at(t);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (leaves(r)) break;
      const Number decayed = state_[r];
      state_[r] = Step::updated(Step::of(x[r].k_hi, x[r].k_lo), token.write, decayed);
      magnitude(r) = kda::updated_magnitude(magnitude(r), token.magnitude, x[r].retained, x[r].written);
      if constexpr (!Step::has_low)
        if (t + 1 == place_.tokens() && has_errors() && has_row(r)) {
          error_.before = written_[3 * warp_lanes], error_.of_write = written_[4 * warp_lanes];
          of_elements_ = error_.larger(of_elements_,
                                       error_.of_element(x[r].decay_hi, x[r].written, decayed, magnitude(r)));
        }
    }
  }
  __device__ void decay(int t) {
    const ChannelPairs* const x = inputs_.at(t);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (leaves(r)) break;
      state_[r] = Step::scaled(state_[r], Step::of(x[r].decay_hi, x[r].decay_lo));
      magnitude(r) = magnitude(r) * x[r].decay_hi;
    }
  }

  template <Sum sum>
  __device__ Term term(const ChannelPairs* x, int r) const {
    const Number factor =
        sum == Sum::output ? Step::of(x[r].q_hi, x[r].q_lo) : Step::of(x[r].k_hi, x[r].k_lo);
    return Step::term(factor, state_[r]);
  }

  /// A sum of token t over all rows up to those of this warp. What is before them comes late: what does not
  /// depend on it is done by then, as far as there are registers.
  template <Sum sum>
  __device__ void add_up(int t) {
    const ChannelPairs* const x = inputs_.at(t);
    double rest[rows];  // high parts of the terms, and then what they add to the low part
    if constexpr (Step::has_low)
#pragma unroll
      for (int r = 0; r < rows; ++r) rest[r] = term<sum>(x, r).hi;
    double start = 0, size = 0;
    if (warp_ > 0) {
      barrier(sum, 0, warp_).wait(t);
      start = handed(sum, warp_)[0], size = handed(sum, warp_)[warp_lanes];
    }
    double high = start, squares = 0;  // of the state, which the error takes
    if (!Step::has_low && warp_ > 0) squares = handed(sum, warp_)[2 * warp_lanes];
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if constexpr (Step::has_low) {
        const Term next{rest[r], 0.0};
        high = Step::added(high, next).hi;
        size = Step::enlarged(size, next);
      } else if (has_row(r)) {
        high = Step::added(high, term<sum>(x, r)).hi;
        size = Step::enlarged(size, term<sum>(x, r));
        if (sum == Sum::prediction) squares = numeric::fma(state_[r], state_[r], squares);
      }
    if (!Step::has_low) handed(sum, warp_ + 1)[2 * warp_lanes] = squares;
    handed(sum, warp_ + 1)[0] = high, handed(sum, warp_ + 1)[warp_lanes] = size;
    if (!is_last()) barrier(sum, 0, warp_ + 1).arrive();

    if constexpr (Step::has_low) {
      double before = start;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const numeric::DoubleDouble step = Step::added(before, term<sum>(x, r));
        rest[r] = step.lo;
        before = step.hi;
      }
      double low = 0;
      if (warp_ > 0) {
        barrier(sum, 1, warp_).wait(t);
        low = handed(sum, warp_)[2 * warp_lanes];
      }
#pragma unroll
      for (int r = 0; r < rows; ++r) low = low + rest[r];
      handed(sum, warp_ + 1)[2 * warp_lanes] = low;
      if (!is_last()) barrier(sum, 1, warp_ + 1).arrive();
    }
  }
  /// In the last warp.
  __device__ Number added_up(Sum sum) {
    const double* const x = handed(sum, shared_.warps);
    return Step::of(x[0], Step::has_low ? x[2 * warp_lanes] : 0.0);
  }

  /// The last warp: token t's output, and what token t + 1 writes.
  __device__ void finish(int t, bool is_token, bool has_next) {
    if (is_token) {
      const double size = handed(Sum::output, shared_.warps)[warp_lanes];
      store_output<Step>(place_, t, column_, added_up(Sum::output), size);
      if (has_errors())
        of_output_ = error_.larger(of_output_, error_.of_output(values_.norms(t), place_.p.K, size));
    }
    if (!has_next) return;
    if constexpr (!Step::has_low)
      if (has_errors()) {
        const double* const sums = handed(Sum::prediction, shared_.warps);
        error_.advance(values_.norms(t + 1), place_.p.K, values_.beta_hi(t + 1), sums[2 * warp_lanes],
                       sums[warp_lanes], Step::difference(values_.value(t + 1, lane_), sums[0]));
        written_[3 * warp_lanes] = error_.before, written_[4 * warp_lanes] = error_.of_write;
      }
    OracleWrite<Step>::of(values_.value(t + 1, lane_), added_up(Sum::prediction),
                          handed(Sum::prediction, shared_.warps)[warp_lanes],
                          Step::of(values_.beta_hi(t + 1), values_.beta_lo(t + 1)))
        .store(written_);
    write_is_there().arrive();
  }

  const OracleShared shared_;
  const OraclePlace place_;
  const int lane_, warp_, column_;
  OracleRows inputs_;
  OracleValues values_;
  double *written_, *handed_, *magnitudes_;
  ChainBarrier* barriers_;
  Number state_[rows];
  kda::ColumnError<double> error_{0};
  double of_output_ = 0, of_elements_ = 0;  ///< the largest, over magnitudes
};

/// Two blocks a processor for K up to 128.
template <class Step>
__global__ void __launch_bounds__(512, 1) oracle_recurrence(const __grid_constant__ OraclePortion p) {
  extern __shared__ __align__(16) double oracle_memory[];
  if (p.ranges[blockIdx.z].count > 0) OracleWarp<Step>(p, oracle_memory).run();
}

template <class Step>
void launch_oracle(const OraclePortion& p, int sequences, cudaStream_t stream) {
  const OracleShared shared(p.K);
  const dim3 blocks(static_cast<unsigned>((p.V + warp_lanes - 1) / warp_lanes),
                    static_cast<unsigned>(p.heads), static_cast<unsigned>(sequences));
  launch_on(stream, "launching the recurrence of the oracle", oracle_recurrence<Step>, blocks,
            shared.warps * warp_lanes, shared.bytes(), p);
}

}  // namespace kda_check::cuda

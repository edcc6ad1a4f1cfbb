// Sums over k of the oracle where time alone counts: a warp adds up the terms of some columns, from the first
// row to the last. Each addition waits for the one before it, eight cycles; nothing else that a sum in
// double-double takes may come between them. A lane has a chain of additions: the high part of a column, its
// magnitude, or its low part, which to the processor are one addition a step. The low part follows the high
// part at a distance of four blocks of rows:
//
//   block b        high parts are added up; what is before each step is noted down
//   block b - 1    what each addition loses is found, a step a lane
//   block b - 2    it is noted down
//   block b - 3    it is fetched
//   block b - 4    it is added up
//
// Where there are more columns than lanes have chains for, a lane adds up both parts of one.
#pragma once

#include "cuda/truth/block.cuh"

namespace kda_check::cuda {

constexpr int oracle_padding = 2;  ///< doubles behind a column, whose neighbours are then in other banks

/// The terms of a sum, first parts and second parts: of each column those of all rows, and behind the columns
/// their sizes. Zeros beyond K.
template <class Step, int columns>
class OracleTerms {
 public:
  using Term = typename Step::Term;
  static_assert(sizeof(Term) == 2 * sizeof(double));

  /// In doubles.
  static __host__ __device__ int size(int K) { return 4 * columns * stride_of(K); }

  __device__ OracleTerms(double* memory, int K)
      : first_(memory), second_(memory + 2 * columns * stride_of(K)), stride_(stride_of(K)) {}
  __device__ void store(int row, int column, const Term& term) const {
    const auto [first, second] = term;
    const auto [first_size, second_size] = Step::size_of(term);
    first_[column * stride_ + row] = first;
    first_[(columns + column) * stride_ + row] = first_size;
    second_[column * stride_ + row] = second;
    if constexpr (!Step::has_low) second_[(columns + column) * stride_ + row] = second_size;
  }
  __device__ Term load(int row, int column) const {
    return {first_[column * stride_ + row], second_[column * stride_ + row]};
  }
  /// From the first row on.
  __device__ const double* first_parts(int column, bool are_sizes) const {
    return first_ + (are_sizes ? columns + column : column) * stride_;
  }
  __device__ const double* second_parts(int column, bool are_sizes) const {
    return second_ + (are_sizes ? columns + column : column) * stride_;
  }

 private:
  static __host__ __device__ int stride_of(int K) { return oracle_warps(K) * oracle_rows + oracle_padding; }
  double *first_, *second_;
  int stride_;
};

template <class Step, int columns>
class OracleAdder {
 public:
  using Number = typename Step::Number;
  using Terms = OracleTerms<Step, columns>;

  /// In doubles: what it notes down.
  static __host__ __device__ int size() { return (2 * slots * columns + 1) * stride; }

  /// `memory`: zeros.
  __device__ OracleAdder(double* memory, const Terms& terms, int K)
      : terms_(terms),
        blocks_(oracle_warps(K) * (oracle_rows / rows)),
        lane_(static_cast<int>(threadIdx.x) % warp_lanes),
        column_(lane_ % columns),
        befores_(memory),
        losses_(memory + slots * columns * stride),
        zeros_(memory + 2 * slots * columns * stride) {}

  /// As it was added up. By all lanes; each has those of column lane % columns.
  __device__ Number sum(double& magnitude) const {
    constexpr int usual_blocks = 128 / rows;
    if constexpr (!has_chains)
      return sum_of_both(magnitude);
    else if (blocks_ == usual_blocks)
      return sum_of<usual_blocks>(blocks_, magnitude);
    else
      return sum_of<0>(blocks_, magnitude);
  }

 private:
  /// What is added up: of column n % columns by lane n, which is of kind n / columns. The lanes behind begin
  /// anew.
  enum Kind { high_part, sum_of_sizes, low_part };
  static constexpr int kinds = Step::has_low ? 3 : 2;
  static constexpr bool has_chains = kinds * columns <= warp_lanes;
  static constexpr int rows = 8, stride = rows + oracle_padding;  ///< of a block
  static constexpr int distance = Step::has_low ? 4 : 0;  ///< in blocks, of low parts behind high ones
  static constexpr int slots = 2;                         ///< of what is noted down
  static constexpr int steps = warp_lanes / columns < rows ? warp_lanes / columns : rows;
  static constexpr int rounds = rows / steps;  ///< in which losses are found

  /// What a lane adds in the time of a block.
  struct Addends {
    double first[rows], second[rows];
  };

  static __device__ double2 pair_at(const double* at) { return *reinterpret_cast<const double2*>(at); }

  /// `known`: blocks, or 0. With them it is one piece of code, where the compiler finds room between
  /// additions for all that is beside them.
  template <int known>
  __device__ Number sum_of(int blocks, double& magnitude) const {
    if constexpr (known > 0) blocks = known;
    double chain = 0, lost[rounds] = {};
    Addends even, odd;
    fetch(0, blocks, even);
    add(0, blocks, even, odd, chain, lost);
#pragma unroll(known > 0 ? known + distance : 1)
    for (int b = 1; b < blocks + distance; b += 2) {
      add(b, blocks, odd, even, chain, lost);
      if (known == 0 || b + 1 < blocks + distance) add(b + 1, blocks, even, odd, chain, lost);
    }
    magnitude = of_lane(chain, sum_of_sizes);
    return Step::of(of_lane(chain, high_part), Step::has_low ? of_lane(chain, low_part) : 0.0);
  }
  __device__ double of_lane(double chain, Kind kind) const {
    return __shfl_sync(whole_warp, chain, kind * columns + column_);
  }

  /// Nothing before a chain begins and when it is done.
  __device__ void fetch(int block, int blocks, Addends& to) const {
    const int kind = lane_ / columns % kinds, b = kind == low_part ? block - distance : block;
    const double* first =
        kind == low_part ? note(losses_, b) : terms_.first_parts(column_, kind == sum_of_sizes) + b * rows;
    const double* second = terms_.second_parts(column_, kind == sum_of_sizes) + b * rows;
    if (static_cast<unsigned>(b) >= static_cast<unsigned>(blocks)) first = second = zeros_;
#pragma unroll
    for (int r = 0; r < rows; r += 2) {
      const double2 x = pair_at(first + r);
      to.first[r] = x.x, to.first[r + 1] = x.y;
      if constexpr (!Step::has_low) {
        const double2 y = pair_at(second + r);
        to.second[r] = y.x, to.second[r + 1] = y.y;
      }
    }
  }

  __device__ void add(int block, int blocks, const Addends& addends, Addends& next, double& chain,
                      double* lost) const {
    fetch(block + 1, blocks, next);
    double now[rounds];
    if constexpr (Step::has_low) find_losses(block - 1, blocks, now);
#pragma unroll
    for (int r = 0; r < rows; r += 2) {
      const double before = chain, between = added(chain, addends, r);
      chain = added(between, addends, r + 1);
      if constexpr (Step::has_low)
        if (lane_ < columns)
          *reinterpret_cast<double2*>(note(befores_, block) + r) = make_double2(before, between);
    }
    if constexpr (Step::has_low) {
#pragma unroll
      for (int n = 0; n < rounds; ++n) {
        note(losses_, block - 2)[step(n)] = lost[n];
        lost[n] = now[n];
      }
      __syncwarp();
    }
  }
  static __device__ double added(double chain, const Addends& addends, int r) {
    return Step::added(chain, {addends.first[r], Step::has_low ? 0.0 : addends.second[r]}).hi;
  }

  __device__ double* note(double* notes, int block) const {
    return notes + ((block & 1) * columns + column_) * stride;
  }
  /// Of these steps a lane has one a round; where there are more lanes, several have the same.
  __device__ int step(int round) const { return round * steps + lane_ / columns % steps; }
  /// Before the first block and behind the last one there is something, too, which nobody needs.
  __device__ void find_losses(int block, int blocks, double* lost) const {
    const int there = block < 0 ? 0 : block < blocks ? block : blocks - 1;
#pragma unroll
    for (int n = 0; n < rounds; ++n)
      lost[n] = Step::added(note(befores_, block)[step(n)], terms_.load(there * rows + step(n), column_)).lo;
  }

  /// The lanes behind those of the columns add up sizes while these add up values.
  __device__ Number sum_of_both(double& magnitude) const {
    const double* const first = terms_.first_parts(column_, lane_ >= columns);
    const double* const second = terms_.second_parts(column_, !Step::has_low && lane_ >= columns);
    double high = 0, low = 0;
#pragma unroll 16
    for (int k = 0; k < blocks_ * rows; k += 2) {
      const double2 x = pair_at(first + k), y = pair_at(second + k);
      const numeric::DoubleDouble one = Step::added(high, {x.x, y.x}), two = Step::added(one.hi, {x.y, y.y});
      high = two.hi;
      if constexpr (Step::has_low) low = (low + one.lo) + two.lo;
    }
    magnitude = __shfl_down_sync(whole_warp, high, columns);
    return Step::of(high, low);
  }

  const Terms& terms_;
  const int blocks_, lane_, column_;
  double *befores_, *losses_, *zeros_;
};

}  // namespace kda_check::cuda

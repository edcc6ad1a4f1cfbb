// The sums of B4, what stays within a chunk, in the decay forms of the scores (scores.cu):
//
//   dqi_i = sum_j dAqk_ij k_j e^(G_i - G_j)    row_i = sum_j dAkk_ij k_j e^(G_i - G_j)
//   column_j = sum_i dAqk_ij q_i e^(G_i - G_j) + sum_i dAkk_ij beta_i k_i e^(G_i - G_j)
//
// With an erase gate erase_i k_i is in the place of beta_i k_i.
//
// 32 channels of a chunk at a time, a lane for each. A warp has the row sums of a block of 16 rows, or the
// column sums of one: as many scores to add up as exponentials to compute are those that block alone needs.
#pragma once

#include "cuda/arithmetic/tile.cuh"
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

namespace {

static_assert(warps == 2 * most_row_blocks);
constexpr int together = 4;  ///< scores of a row that are fetched at once

/// In shared memory.
template <class T>
struct StagedSums {
  T dAqk[most_rows][most_rows], dAkk[most_rows][most_rows];
  T q[most_rows][channels], k[most_rows][channels], G[most_rows][channels];
  T dq_sums[most_rows][channels], row_sums[most_rows][channels];
  T column_sums[most_rows][channels];  ///< then dG
  T beta[most_rows];
  T key_sums[warps][channels];  ///< of k_i dk_i, of as many rows apart
  T state_sums[channels];       ///< rows of h dh, summed
};

/// `rounds`: whether factors go through cast points. The code of those that are none would lie in the loops,
/// and the device fetches what it jumps over. `erases`: what predictions read the state along is a row of its
/// own, in memory.
template <class T, bool is_fused, bool rounds, bool erases>
class BlockSums {
  using Block = T[block_rows];

 public:
  /// `rows`: of the chunk.
  __device__ BlockSums(const DeviceProblem& p, kda::DecayForm decay, int rows, StagedSums<T>& staged)
      : p_(p), decay_(decay), rows_(rows), staged_(staged) {
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes, lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
    from_ = warp_ % most_row_blocks * block_rows, to_ = min(from_ + block_rows, rows_);
  }

  /// erases: row 0 of what is read along, at this lane's channel.
  __device__ void go_to(const T* reads, std::size_t stride) { reads_ = reads, read_stride_ = stride; }

  /// This warp's.
  __device__ void add() const {
    if (from_ >= rows_) return;
    warp_ < most_row_blocks ? add_rows() : add_columns();
  }

  __device__ bool is_pairwise() const { return decay_ == kda::DecayForm::anchor_pair; }
  __device__ T q(int i) const { return staged_.q[i][lane_]; }
  __device__ T key(int i) const { return staged_.k[i][lane_]; }
  __device__ T read(int i) const { return erases ? reads_[i * read_stride_] : key(i); }
  __device__ T G(int i) const { return staged_.G[i][lane_]; }
  /// e^x, the branches once for all.
  template <int count>
  __device__ void exponentials(T (&x)[count]) const {
    if (p_.exponential == Exponential::cuda_fast) {
#pragma unroll
      for (int n = 0; n < count; ++n) x[n] = exponential(Exponential::cuda_fast, x[n]);
    } else {
#pragma unroll
      for (int n = 0; n < count; ++n) x[n] = exponential(Exponential::cuda, x[n]);
    }
    round(p_.casts.exponentials, x);
  }

 private:
  __device__ T decay(int above, int below) const {
    T x[] = {exponential(p_.exponential, G(above) - G(below))};
    round(p_.casts.exponentials, x);
    return x[0];
  }
  template <class Array>
  __device__ static void round(kda::Rounding rounding, Array& x) {
    if constexpr (rounds) round_all(rounding, x);
  }
  /// dqi and row: from the columns left of this warp's block, then from the block itself.
  __device__ void add_rows() const {
    over_block([&](int, int i) { staged_.dq_sums[i][lane_] = staged_.row_sums[i][lane_] = T(0); });
    add_rows(0, from_, from_);
    if (is_pairwise()) return add_row_pairs();
    add_rows(from_, to_, middle());
  }
  /// column: from the rows below this warp's block, then from the block itself.
  __device__ void add_columns() const {
    over_block([&](int, int j) { staged_.column_sums[j][lane_] = T(0); });
    add_columns(to_, rows_, to_ - 1);
    if (is_pairwise()) return add_column_pairs();
    add_columns(from_, to_, middle());
  }
  /// Row of the block's anchor for its diagonal.
  __device__ int middle() const {
    return decay_ == kda::DecayForm::anchor_mid ? min(from_ + block_rows / 2, to_ - 1) : from_;
  }

  /// += e^(G_i - a) sum over the columns [begin, end) of scores k_j e^(a - G_j)
  __device__ void add_rows(int begin, int end, int anchor) const {
    if (begin >= end) return;
    Block of_query = {}, of_key = {};
    const T a = G(anchor);
    int j = begin;
#pragma unroll 1
    for (; j + together <= end; j += together) add_columns_to_rows<together>(a, j, of_query, of_key);
#pragma unroll 1
    for (; j < end; ++j) add_columns_to_rows<1>(a, j, of_query, of_key);
    Block factor = {};
    over_block([&](int r, int i) { factor[r] = G(i) - a; });
    exponentials(factor);
    over_block([&](int r, int i) {
      T &dq = staged_.dq_sums[i][lane_], &row = staged_.row_sums[i][lane_];
      dq = dq + of_query[r] * factor[r];
      row = row + of_key[r] * factor[r];
    });
  }
  template <int count>
  __device__ void add_columns_to_rows(T a, int j, Block& of_query, Block& of_key) const {
    T left[count];
#pragma unroll
    for (int n = 0; n < count; ++n) left[n] = a - G(j + n);
    exponentials(left);
#pragma unroll
    for (int n = 0; n < count; ++n) left[n] = key(j + n) * left[n];
    round(p_.casts.score_operands, left);
#pragma unroll
    for (int r = 0; r < block_rows; ++r) {
      add_terms(of_query[r], staged_.dAqk[from_ + r] + j, left);
      add_terms(of_key[r], staged_.dAkk[from_ + r] + j, left);
    }
  }
  template <int count>
  __device__ static void add_terms(T& sum, const T* scores, const T (&left)[count]) {
    if constexpr (count == 4) {
      const Four<T> four = four_at(scores);
#pragma unroll
      for (int n = 0; n < count; ++n) sum = multiply_add<is_fused>(four.x[n], left[n], sum);
    } else {
#pragma unroll
      for (int n = 0; n < count; ++n) sum = multiply_add<is_fused>(scores[n], left[n], sum);
    }
  }

  /// += e^(a - G_j) (sum over the rows [begin, end) of dAqk q_i e^(G_i - a), and then of dAkk beta_i k_i ...)
  __device__ void add_columns(int begin, int end, int anchor) const {
    if (begin >= end) return;
    Block sums = {};
    const T a = G(anchor);
    add_rows_to_columns<false>(a, begin, end, sums);
    add_rows_to_columns<true>(a, begin, end, sums);
    Block factor = {};
    over_block([&](int c, int j) { factor[c] = a - G(j); });
    exponentials(factor);
    over_block([&](int c, int j) {
      T& column = staged_.column_sums[j][lane_];
      column = column + sums[c] * factor[c];
    });
  }
  template <bool of_keys>
  __device__ void add_rows_to_columns(T a, int begin, int end, Block& sums) const {
    int i = begin;
#pragma unroll 1
    for (; i + together <= end; i += together) add_rows_to_columns<of_keys, together>(a, i, sums);
#pragma unroll 1
    for (; i < end; ++i) add_rows_to_columns<of_keys, 1>(a, i, sums);
  }
  template <bool of_keys, int count>
  __device__ void add_rows_to_columns(T a, int i, Block& sums) const {
    T factor[count], right[count];
#pragma unroll
    for (int n = 0; n < count; ++n) {
      factor[n] = G(i + n) - a;
      right[n] = of_keys ? read(i + n) * staged_.beta[i + n] : q(i + n);
    }
    exponentials(factor);
    if (of_keys) round(p_.casts.beta_key, right);
#pragma unroll
    for (int n = 0; n < count; ++n) right[n] = right[n] * factor[n];
    round(p_.casts.score_operands, right);
#pragma unroll
    for (int n = 0; n < count; ++n)
      add_row(sums, of_keys ? staged_.dAkk[i + n] : staged_.dAqk[i + n], right[n]);
  }
  __device__ void add_row(Block& sums, const T* scores, T right) const {
#pragma unroll
    for (int r = 0; r < block_rows; r += 4) {
      const Four<T> four = four_at(scores + from_ + r);
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[r + c] = multiply_add<is_fused>(four.x[c], right, sums[r + c]);
    }
  }

  /// One exponential for each row i and column j <= i of the block.
  __device__ void add_row_pairs() const {
    Block dq = {}, row = {};
    over_block([&](int r, int i) { dq[r] = staged_.dq_sums[i][lane_], row[r] = staged_.row_sums[i][lane_]; });
#pragma unroll 1
    for (int j = from_; j < to_; ++j)
      over_block([&](int r, int i) {
        if (j > i) return;
        const T left = key(j) * decay(i, j);
        dq[r] = multiply_add<is_fused>(staged_.dAqk[i][j], left, dq[r]);
        row[r] = multiply_add<is_fused>(staged_.dAkk[i][j], left, row[r]);
      });
    over_block([&](int r, int i) { staged_.dq_sums[i][lane_] = dq[r], staged_.row_sums[i][lane_] = row[r]; });
  }
  /// The same exponentials for both sums of a column, which come one after the other.
  __device__ void add_column_pairs() const {
#pragma unroll 1
    for (int j = from_; j < to_; ++j) {
      T factor[block_rows] = {}, sum = staged_.column_sums[j][lane_];
      over_block([&](int n, int i) {
        if (i < j) return;
        factor[n] = decay(i, j);
        sum = multiply_add<is_fused>(staged_.dAqk[i][j], q(i) * factor[n], sum);
      });
      over_block([&](int n, int i) {
        if (i < j) return;
        const T beta_key = read(i) * staged_.beta[i];
        sum = multiply_add<is_fused>(staged_.dAkk[i][j], beta_key * factor[n], sum);
      });
      staged_.column_sums[j][lane_] = sum;
    }
  }
  /// body(number, row) for the rows of this warp's block.
  template <class Body>
  __device__ void over_block(Body body) const {
#pragma unroll
    for (int n = 0; n < block_rows; ++n)
      if (from_ + n < to_) body(n, from_ + n);
  }

  const DeviceProblem& p_;
  const kda::DecayForm decay_;
  const int rows_;
  StagedSums<T>& staged_;
  int warp_, lane_, from_, to_;
  const T* reads_ = nullptr;
  std::size_t read_stride_ = 0;
};

}  // namespace

}  // namespace kda_check::cuda

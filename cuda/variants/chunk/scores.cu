// Aqk and L (F2, F3) with anchors of 16 rows (docs/kda.md, "Exponent formulations").
//
// A chunk's lower triangle is cut into blocks of 16 x 16, a warp for each. Row block I and column block J
// meet in factors exp(G_i - a) and exp(a - G_j); left of the diagonal a is the first row of I, on it the
// middle row or the first, or there is one exponential for each pair (i, j). Every sum over k is one
// thread's, from k = 0 upwards.
#include <algorithm>

#include "cuda/arithmetic/tile.cuh"
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

namespace {

constexpr int most_pairs = most_row_blocks * (most_row_blocks + 1) / 2;
constexpr int least_threads =
    256;  ///< so that no thread has more than `most_row_blocks` elements of diagonal blocks

__host__ __device__ constexpr int pairs_of(int blocks) { return blocks * (blocks + 1) / 2; }

/// Rows of `channels` elements, padded so that a warp reads eight rows, four elements each, without conflict.
template <class T>
constexpr int row_stride = channels + 16 / static_cast<int>(sizeof(T));
/// ... and so that 32 rows are read one element each.
constexpr int raw_stride = channels + 1;

enum Side { query, key };
enum AnchorOf { off_diagonal, diagonal };

/// What is staged for `channels` channels.
template <class T>
struct StagedScores {
  T q[most_rows][raw_stride], k[most_rows][raw_stride], G[most_rows][raw_stride];
  alignas(16) T left[2][2][most_rows][row_stride<T>];          ///< [AnchorOf][Side]: q and k times exp(G - a)
  alignas(16) T right[most_pairs][block_rows][row_stride<T>];  ///< k exp(a - G), for each pair of blocks
};

/// Blocks (0,0), (1,0), (1,1), (2,0), ...
struct BlockPair {
  int index, row, column;
  __device__ explicit BlockPair(int i) : index(i), row(0) {
    while (pairs_of(row + 1) <= index) ++row;
    column = index - pairs_of(row);
  }
};

/// erases: what predictions read the state along is a row of its own, in memory.
template <class T, bool is_fused, bool erases>
class Scores {
 public:
  __device__ Scores(const DeviceProblem& p, const ChunkWork<T>& work, kda::DecayForm decay,
                    StagedScores<T>& staged)
      : p_(p), work_(work), chunk_(work, blockIdx.x, blockIdx.y), decay_(decay), staged_(staged) {}

  __device__ void run() {
    const int threads = blockDim.x, lane = threadIdx.x % warp_lanes;
    const BlockPair mine(threadIdx.x / warp_lanes);
    const bool pairwise = decay_ == kda::DecayForm::anchor_pair;
    const bool multiplies = mine.row * block_rows < chunk_.rows && !(pairwise && mine.row == mine.column);
    T sums[4][4] = {};
    T pair_sums[2][most_row_blocks] = {};  // of the diagonal blocks' elements this thread has
    for (int first = 0; first < p_.K; first += channels) {
      const int count = min(channels, p_.K - first);
      stage(first, count, threads);
      __syncthreads();
      scale_left(first, count, lane, threads / warp_lanes);
      if (multiplies) scale_right(mine, lane);
      if (pairwise) add_pairs(first, count, threads, pair_sums);
      __syncthreads();
      if (multiplies) multiply(mine, lane, count, sums);
    }
    if (multiplies) write_block(mine, lane, sums);
    if (pairwise) write_pairs(threads, pair_sums);
    clear_upper(threads);
  }

 private:
  __device__ T exponential_of(T x) const {
    return kda::rounded(p_.casts.exponentials, exponential(p_.exponential, x));
  }

  /// A lane for each channel; those beyond K are zeros.
  __device__ void stage(int first, int count, int threads) {
    const int k = threadIdx.x % warp_lanes;
    const bool there = k < count;
    for (int i = threadIdx.x / warp_lanes; i < chunk_.rows; i += threads / warp_lanes) {
      staged_.q[i][k] = there ? chunk_.query_row(work_.q, i, p_.K)[first + k] : T(0);
      staged_.k[i][k] = there ? chunk_.query_row(work_.k, i, p_.K)[first + k] : T(0);
      staged_.G[i][k] = there ? chunk_.row(work_.G, i, p_.K)[first + k] : T(0);
    }
  }

  /// The row whose G is the anchor of a pair of blocks.
  __device__ int anchor_row(int block, AnchorOf where) const {
    const int first = block * block_rows;
    if (where == off_diagonal || decay_ != kda::DecayForm::anchor_mid) return first;
    const int last = min(block_rows, chunk_.rows - first) - 1;
    return first + min(block_rows / 2, last);
  }

  /// Channel `k` of those from `first` on.
  __device__ T read_along(int i, int first, int k) const {
    if constexpr (erases) return chunk_.row(work_.read, i, p_.K)[first + k];
    return staged_.k[i][k];
  }
  /// A lane for each channel. The left factors are shared out among all warps; the right one of a pair of
  /// blocks is made by the warp that multiplies with it.
  __device__ void scale_left(int first, int count, int lane, int warps) {
    const int kinds = decay_ == kda::DecayForm::anchor_pair ? 1 : 2;
    for (int e = threadIdx.x / warp_lanes; e < kinds * chunk_.rows; e += warps) {
      const auto where = e < chunk_.rows ? off_diagonal : diagonal;
      const int i = where == off_diagonal ? e : e - chunk_.rows;
      const T decay = exponential_of(staged_.G[i][lane] - staged_.G[anchor_row(i / block_rows, where)][lane]);
      staged_.left[where][query][i][lane] = operand(staged_.q[i][lane] * decay);
      const T read = erases && lane >= count ? T(0) : read_along(i, first, lane);
      staged_.left[where][key][i][lane] = operand(read * decay);
    }
  }
  __device__ void scale_right(const BlockPair& pair, int lane) {
    const int anchor = anchor_row(pair.row, pair.row == pair.column ? diagonal : off_diagonal);
    const T G = staged_.G[anchor][lane];
    for (int row = 0; row < block_rows; ++row) {
      const int j = pair.column * block_rows + row;
      staged_.right[pair.index][row][lane] =
          j < chunk_.rows ? operand(staged_.k[j][lane] * exponential_of(G - staged_.G[j][lane])) : T(0);
    }
  }
  __device__ T operand(T x) const { return kda::rounded(p_.casts.score_operands, x); }

  /// Row r of this lane: rows 0 to 15 are those of q, 16 to 31 those of k.
  __device__ static int row_of(int lane, int r) { return lane / 4 + 8 * r; }
  __device__ static int column_of(int lane, int c) { return lane % 4 + 4 * c; }

  /// 32 x 16 sums by a warp, 4 x 4 by a lane.
  __device__ void multiply(const BlockPair& pair, int lane, int count, T (&sums)[4][4]) const {
    const AnchorOf where = pair.row == pair.column ? diagonal : off_diagonal;
    const T *a[4], *b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = row_of(lane, i);
      a[i] = staged_.left[where][row / block_rows][pair.row * block_rows + row % block_rows];
      b[i] = staged_.right[pair.index][column_of(lane, i)];
    }
    int k = 0;
#pragma unroll 2
    for (; k + 4 <= count; k += 4) {
      Four<T> rows[4], columns[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[i] = four_at(a[i] + k);
        columns[i] = four_at(b[i] + k);
      }
#pragma unroll
      for (int d = 0; d < 4; ++d)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            sums[r][c] = multiply_add<is_fused>(rows[r].x[d], columns[c].x[d], sums[r][c]);
    }
    for (; k < count; ++k)
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[r][c] = multiply_add<is_fused>(a[r][k], b[c][k], sums[r][c]);
  }

  /// Element e of the diagonal blocks, 256 in each: one exponential for each channel, no anchor.
  __device__ void add_pairs(int first, int count, int threads, T (&sums)[2][most_row_blocks]) const {
#pragma unroll
    for (int m = 0; m < most_row_blocks; ++m) {
      const int e = threadIdx.x + m * threads;
      const int i = e / block_rows, j = i / block_rows * block_rows + e % block_rows;
      if (i >= chunk_.rows || j > i) continue;
      const T beta = *chunk_.row(work_.beta, i, 1);
      for (int k = 0; k < count; ++k) {
        const T decayed =
            staged_.k[j][k] *
            exponential(p_.exponential, staged_.G[i][k] - staged_.G[j][k]);  // k_j e^(G_i - G_j)
        sums[query][m] = multiply_add<is_fused>(staged_.q[i][k], decayed, sums[query][m]);
        sums[key][m] = multiply_add<is_fused>(read_along(i, first, k) * beta, decayed, sums[key][m]);
      }
    }
  }

  __device__ void write(int i, int j, T aqk, T l) const {
    chunk_.row(work_.Aqk, i, work_.C)[j] = j <= i ? kda::rounded(p_.casts.Aqk, aqk) : T(0);
    chunk_.row(work_.L, i, work_.C)[j] = j < i ? kda::rounded(p_.casts.L, l) : T(0);
  }

  /// Sums 0 and 1 of a lane are those of q, 2 and 3 those of k in the same rows.
  __device__ void write_block(const BlockPair& pair, int lane, const T (&sums)[4][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = pair.row * block_rows + row_of(lane, r);
      if (i >= chunk_.rows) continue;
      const T beta = *chunk_.row(work_.beta, i, 1);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        write(i, pair.column * block_rows + column_of(lane, c), T(p_.scale) * sums[r][c],
              beta * sums[r + 2][c]);
    }
  }

  __device__ void write_pairs(int threads, const T (&sums)[2][most_row_blocks]) const {
#pragma unroll
    for (int m = 0; m < most_row_blocks; ++m) {
      const int e = threadIdx.x + m * threads;
      const int i = e / block_rows, j = i / block_rows * block_rows + e % block_rows;
      if (i < chunk_.rows) write(i, j, T(p_.scale) * sums[query][m], sums[key][m]);
    }
  }

  /// Zeros right of the diagonal blocks.
  __device__ void clear_upper(int threads) const {
    for (int e = threadIdx.x; e < chunk_.rows * work_.C; e += threads) {
      const int i = e / work_.C, j = e % work_.C;
      if (j / block_rows > i / block_rows) write(i, j, T(0), T(0));
    }
  }

  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const DeviceChunk<T> chunk_;
  const kda::DecayForm decay_;
  StagedScores<T>& staged_;
};

template <class T, bool is_fused, bool erases>
__global__ void __launch_bounds__(most_pairs* warp_lanes, sizeof(T) == sizeof(float) ? 2 : 1)
    scores_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work,
                  kda::DecayForm decay) {
  extern __shared__ __align__(16) unsigned char memory[];
  Scores<T, is_fused, erases>(p, work, decay, *reinterpret_cast<StagedScores<T>*>(memory)).run();
}

template <class T, bool erases>
void launch_scores(bool is_fused, kda::DecayForm decay, const DeviceProblem& p, const ChunkWork<T>& work) {
  const int threads = std::max(least_threads, pairs_of(work.C / block_rows) * warp_lanes);
  launch("gpu-chunk, scores", is_fused ? scores_kernel<T, true, erases> : scores_kernel<T, false, erases>,
         dim3(work.chunk_count, work.heads), threads, sizeof(StagedScores<T>), p, work, decay);
}

}  // namespace

template <class T>
void launch_chunk_scores(bool is_fused, kda::DecayForm decay, const DeviceProblem& p,
                         const ChunkWork<T>& work) {
  work.read == nullptr ? launch_scores<T, false>(is_fused, decay, p, work)
                       : launch_scores<T, true>(is_fused, decay, p, work);
}

template <class T>
std::size_t scores_shared_bytes() {
  return sizeof(StagedScores<T>);
}

template std::size_t scores_shared_bytes<float>();
template std::size_t scores_shared_bytes<double>();
template void launch_chunk_scores(bool, kda::DecayForm, const DeviceProblem&, const ChunkWork<float>&);
template void launch_chunk_scores(bool, kda::DecayForm, const DeviceProblem&, const ChunkWork<double>&);

}  // namespace kda_check::cuda

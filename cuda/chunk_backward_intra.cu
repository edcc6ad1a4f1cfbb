// dG, the gradient of the cumulated gate, and the rest of dk and dbeta. First what comes through states and
// inverse (the end of B3): dG = q dq - k dk + beta dkb k e^G, in the last row + e^Gn (rows of h dh, summed) +
// sum_i k_i dk_i; dk += beta e^G dkb. Then what stays within the chunk (B4), in the decay forms of the scores
// (chunk_scores.cu):
//
//   dqi_i = sum_j dAqk_ij k_j e^(G_i - G_j)    row_i = sum_j dAkk_ij k_j e^(G_i - G_j)
//   column_j = sum_i dAqk_ij q_i e^(G_i - G_j) + sum_i dAkk_ij beta_i k_i e^(G_i - G_j)
//
// and dg (B5).
//
// A block has a chunk, 32 channels at a time, a lane for each; a warp has eight rows, half of those that
// share anchors. So every sum is one thread's, and what is summed along a row (dbeta) is tree:32 by itself.
#include "chunk_backward.cuh"
#include "chunk_backward_gates.cuh"

namespace kda_check::cuda {

namespace {

constexpr int channels = warp_lanes;
constexpr int warps = tile_threads / warp_lanes;
constexpr int warp_rows = most_rows / warps;

template <class T>
struct Staged {
  RowTiles<T> scores;  ///< dAqk, dAkk
  T q[most_rows][channels], k[most_rows][channels], G[most_rows][channels], dk[most_rows][channels];
  T sums[most_rows][channels];  ///< columns; then dG
  T beta[most_rows];
  T last_row[channels];  ///< rows of h dh, summed; then what the last row of dG takes
};

template <class T, bool is_fused>
class IntraGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;
  using Rows = T[warp_rows];

 public:
  __device__ IntraGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work, kda::DecayForm decay,
                            Staged<T>& staged)
      : Base(p, work, 1), decay_(decay), staged_(staged) {
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes, lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
    first_ = warp_ * warp_rows;
    from_ = first_ / block_rows * block_rows, to_ = min(from_ + block_rows, chunk_.rows);
  }

  __device__ void run() {
    stage_scores();
    Rows of_beta;
    for (int channel = 0; channel < p_.K; channel += channels) {
      stage(channel);
      __syncthreads();
      Rows dq = {}, row = {}, column = {};
      if (first_ < chunk_.rows) {
        if (chunk_.rows <= first_ + warp_rows) sum_last_row();
        add_blocks(dq, row, column);
        if (channel + lane_ < p_.K) add_to_gradients(channel, dq, row, column, of_beta);
      }
      __syncthreads();
      if (warp_ == channel / channels % warps) sum_gates(channel);
    }
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) {
      const T sum = warp_sum(of_beta[r], min(p_.K, warp_lanes));
      if (lane_ != 0 || first_ + r >= chunk_.rows) continue;
      T& dbeta = *chunk_.row(work_.write_gradient, first_ + r, 1);
      dbeta = dbeta + sum;
    }
  }

 private:
  __device__ bool is_pairwise() const { return decay_ == kda::DecayForm::anchor_pair; }
  __device__ T score_operand(T x) const { return kda::rounded(p_.casts.score_operands, x); }

  /// As factors of products; those of pairwise sums, which are none, as they are.
  __device__ void stage_scores() {
    for (int e = static_cast<int>(threadIdx.x); e < chunk_.rows * forward_.C; e += tile_threads) {
      const int i = e / forward_.C, j = e % forward_.C;
      const bool whole = is_pairwise() && i / block_rows == j / block_rows;
      const T dAqk = chunk_.row(work_.dAqk, i, forward_.C)[j],
              dAkk = chunk_.row(work_.dAkk, i, forward_.C)[j];
      staged_.scores.left[i][j] = whole ? dAqk : score_operand(dAqk);
      staged_.scores.right[i][j] = whole ? dAkk : score_operand(dAkk);
    }
    for (int i = static_cast<int>(threadIdx.x); i < chunk_.rows; i += tile_threads)
      staged_.beta[i] = this->beta(i);
  }
  /// Rows of h dh, summed. No product of matrices: factors that are in tf32 for those, as tensor cores cut
  /// them, are whole here.
  __device__ void stage_products(int channel) {
    constexpr int keys = channels / warps;
    const int of_warp = warp_ * keys, count = min(keys, p_.K - channel - of_warp);
    if (count <= 0) return;
    const auto rows = [&](T* rounded, T* exact) {
      return this->state(exact != nullptr ? exact : rounded) + std::size_t(channel + of_warp) * p_.V;
    };
    T sums[keys];
    state_products<is_fused>(p_.casts.state_product, rows(forward_.h, forward_.exact_h),
                             rows(work_.dh, work_.exact_dh), p_.V, count, sums);
#pragma unroll
    for (int n = 0; n < keys; ++n)
      if (n < count && lane_ == 0) staged_.last_row[of_warp + n] = sums[n];
  }
  /// Channels beyond K are zeros.
  __device__ void stage(int channel) {
    const int k = channel + lane_;
    for (int i = warp_; i < chunk_.rows; i += warps) {
      staged_.q[i][lane_] = k < p_.K ? Base::q(i, k) : T(0);
      staged_.k[i][lane_] = k < p_.K ? Base::key(i, k) : T(0);
      staged_.G[i][lane_] = k < p_.K ? Base::G(i, k) : T(0);
      staged_.dk[i][lane_] = k < p_.K ? chunk_.row(work_.dk, i, p_.K)[k] : T(0);
    }
    stage_products(channel);
  }
  __device__ T q(int i) const { return staged_.q[i][lane_]; }
  __device__ T key(int i) const { return staged_.k[i][lane_]; }
  __device__ T G(int i) const { return staged_.G[i][lane_]; }
  __device__ T decay(int above, int below) const { return this->exponential_of(G(above) - G(below)); }

  /// From the columns left of this warp's block and the rows below it, then from the block itself.
  __device__ void add_blocks(Rows& dq, Rows& row, Rows& column) const {
    add_rows(0, from_, from_, dq, row);
    add_columns(to_, chunk_.rows, to_ - 1, column);
    if (is_pairwise()) {
      add_row_pairs(dq, row);
      return add_column_pairs(column);
    }
    int anchor = from_;
    if (decay_ == kda::DecayForm::anchor_mid) anchor = min(from_ + block_rows / 2, to_ - 1);
    add_rows(from_, to_, anchor, dq, row);
    add_columns(from_, to_, anchor, column);
  }

  /// += e^(G_i - a) sum over the columns [begin, end) of scores k_j e^(a - G_j)
  __device__ void add_rows(int begin, int end, int anchor, Rows& dq, Rows& row) const {
    if (begin >= end) return;
    Rows of_query = {}, of_key = {};
#pragma unroll 1
    for (int first = begin; first < end; first += 4) {
      const int count = min(4, end - first);
      T left[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j < count) left[j] = score_operand(key(first + j) * decay(anchor, first + j));
#pragma unroll
      for (int r = 0; r < warp_rows; ++r) {
        const Four<T> dAqk = four_at(staged_.scores.left[first_ + r] + first),
                      dAkk = four_at(staged_.scores.right[first_ + r] + first);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (j >= count) break;
          of_query[r] = multiply_add<is_fused>(dAqk.x[j], left[j], of_query[r]);
          of_key[r] = multiply_add<is_fused>(dAkk.x[j], left[j], of_key[r]);
        }
      }
    }
    over_rows([&](int r, int i) {
      const T factor = decay(i, anchor);
      dq[r] = dq[r] + of_query[r] * factor;
      row[r] = row[r] + of_key[r] * factor;
    });
  }
  /// += e^(a - G_j) (sum over the rows [begin, end) of dAqk q_i e^(G_i - a), and then of dAkk beta_i k_i ...)
  __device__ void add_columns(int begin, int end, int anchor, Rows& column) const {
    if (begin >= end) return;
    Rows sums = {};
#pragma unroll 1
    for (int i = begin; i < end; ++i)
      add_row(sums, staged_.scores.left[i], score_operand(q(i) * decay(i, anchor)));
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const T beta_key = kda::rounded(p_.casts.beta_key, key(i) * staged_.beta[i]);
      add_row(sums, staged_.scores.right[i], score_operand(beta_key * decay(i, anchor)));
    }
    over_rows([&](int r, int j) { column[r] = column[r] + sums[r] * decay(anchor, j); });
  }
  __device__ void add_row(Rows& sums, const T* scores, T right) const {
#pragma unroll
    for (int r = 0; r < warp_rows; r += 4) {
      const Four<T> four = four_at(scores + first_ + r);
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[r + c] = multiply_add<is_fused>(four.x[c], right, sums[r + c]);
    }
  }

  /// One exponential for each row i and column j <= i of the block.
  __device__ void add_row_pairs(Rows& dq, Rows& row) const {
#pragma unroll 1
    for (int j = from_; j < to_; ++j)
      over_rows([&](int r, int i) {
        if (j > i) return;
        const T left = key(j) * decay(i, j);
        dq[r] = multiply_add<is_fused>(staged_.scores.left[i][j], left, dq[r]);
        row[r] = multiply_add<is_fused>(staged_.scores.right[i][j], left, row[r]);
      });
  }
  /// The same exponentials for both sums of a column, which come one after the other. Columns take turns in
  /// shared memory: registers have no index.
  __device__ void add_column_pairs(Rows& column) const {
    over_rows([&](int r, int j) { staged_.sums[j][lane_] = column[r]; });
#pragma unroll 1
    for (int j = first_; j < min(first_ + warp_rows, chunk_.rows); ++j) {
      T factor[block_rows], sum = staged_.sums[j][lane_];
      over_block(j, [&](int n, int i) {
        factor[n] = decay(i, j);
        sum = multiply_add<is_fused>(staged_.scores.left[i][j], q(i) * factor[n], sum);
      });
      over_block(j, [&](int n, int i) {
        const T beta_key = key(i) * staged_.beta[i];
        sum = multiply_add<is_fused>(staged_.scores.right[i][j], beta_key * factor[n], sum);
      });
      staged_.sums[j][lane_] = sum;
    }
    over_rows([&](int r, int j) { column[r] = staged_.sums[j][lane_]; });
  }
  /// body(number, row) for the rows of the block from j on.
  template <class Body>
  __device__ void over_block(int j, Body body) const {
#pragma unroll
    for (int n = 0; n < block_rows; ++n)
      if (from_ + n >= j && from_ + n < to_) body(n, from_ + n);
  }

  /// body(r, row) for the rows of this warp that there are.
  template <class Body>
  __device__ void over_rows(Body body) const {
#pragma unroll
    for (int r = 0; r < warp_rows; ++r)
      if (first_ + r < chunk_.rows) body(r, first_ + r);
  }

  /// What came through the states and the inverse, and then what stayed in the chunk.
  __device__ void add_to_gradients(int channel, const Rows& dqi, const Rows& row, const Rows& column,
                                   Rows& of_beta) {
    const int k = channel + lane_, last = chunk_.rows - 1;
    over_rows([&](int r, int i) {
      const T k_i = key(i), q_i = q(i), beta = staged_.beta[i], decay = this->exponential_of(G(i));
      T &dq = chunk_.row(work_.dq, i, p_.K)[k], dk = staged_.dk[i][lane_];
      const T through_w = beta * chunk_.row(work_.dkb, i, p_.K)[k];
      T dG = multiply_add<is_fused>(q_i, dq, -(k_i * dk));
      dG = multiply_add<is_fused>(through_w, k_i * decay, dG);
      if (i == last) dG = dG + staged_.last_row[lane_];
      dk = multiply_add<is_fused>(through_w, decay, dk);

      const T by_row = beta * row[r];
      of_beta[r] = channel == 0 ? row[r] * k_i : multiply_add<is_fused>(row[r], k_i, of_beta[r]);
      dq = dq + dqi[r];
      chunk_.row(work_.dk, i, p_.K)[k] = dk + (by_row + column[r]);
      const T of_key = k_i * (by_row - column[r]);
      staged_.sums[i][lane_] = dG + multiply_add<is_fused>(q_i, dqi[r], of_key);
    });
  }
  /// e^Gn (rows of h dh, summed) + sum_i k_i dk_i, by the warp that has the row.
  __device__ void sum_last_row() const {
    const T sum = sum_of_rows<is_fused>(&staged_.k[0][lane_], &staged_.dk[0][lane_], channels, chunk_.rows);
    const T decay = exponential(p_.exponential, G(chunk_.rows - 1));
    staged_.last_row[lane_] = multiply_add<is_fused>(decay, staged_.last_row[lane_], sum);
  }

  /// dg_t = dG_n + ... + dG_t, from the last row on.
  __device__ void sum_gates(int channel) const {
    const int k = channel + lane_;
    if (k >= p_.K) return;
    T sum = staged_.sums[chunk_.rows - 1][lane_];
    for (int i = chunk_.rows - 1; i >= 0; --i) {
      if (i + 1 < chunk_.rows) sum = sum + staged_.sums[i][lane_];
      chunk_.row(work_.dg, i, p_.K)[k] = sum;
    }
  }

  const kda::DecayForm decay_;
  Staged<T>& staged_;
  int warp_, lane_, first_, from_, to_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads, sizeof(T) == sizeof(float) ? 2 : 1)
    intra_gradients(const __grid_constant__ DeviceProblem p,
                    const __grid_constant__ ChunkBackwardWork<T> work, kda::DecayForm decay) {
  extern __shared__ __align__(16) unsigned char memory[];
  IntraGradients<T, is_fused>(p, work, decay, *reinterpret_cast<Staged<T>*>(memory)).run();
}

}  // namespace

template <class T>
void launch_chunk_backward_intra(bool is_fused, kda::DecayForm decay, const DeviceProblem& p,
                                 const ChunkBackwardWork<T>& work) {
  launch("gpu-chunk backwards, within the chunk",
         is_fused ? intra_gradients<T, true> : intra_gradients<T, false>,
         dim3(work.forward.chunk_count, work.heads), tile_threads, sizeof(Staged<T>), p, work, decay);
}

template void launch_chunk_backward_intra(bool, kda::DecayForm, const DeviceProblem&,
                                          const ChunkBackwardWork<float>&);
template void launch_chunk_backward_intra(bool, kda::DecayForm, const DeviceProblem&,
                                          const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda

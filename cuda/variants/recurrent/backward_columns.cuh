// gpu-recurrent backwards, down the columns of the state (recurrent_backward.cuh). A strip of eight lanes has
// a few columns of the state, or of its gradient, in registers over the whole sequence, and adds up over k.
//
// Included by a file for each type that is computed in: these kernels take the compiler longest.
#pragma once

#include "cuda/variants/recurrent/recurrent_backward.cuh"

namespace kda_check::cuda {

namespace {

constexpr int column_warps = 8;
constexpr int column_tile = column_warps;  ///< tokens that come to shared memory together: a warp each

/// One head of one sequence, block_columns columns. whole: K and V fill all lanes and the head has one beta,
/// what has to be fast.
template <class T, int rows, bool whole>
class Columns {
 public:
  using Row = Strip<8, rows>;
  static constexpr int columns = sizeof(T) == sizeof(float) ? 2 : 1;  ///< of a strip
  static constexpr int warp_columns = Row::strips * columns, block_columns = column_warps * warp_columns;

  __device__ Columns(const DeviceProblem& p, const BackwardWork<T>& work, bool is_fused, int sequence,
                     int head, int tile, void* memory)
      : p_(p),
        work_(work),
        range_(work.ranges[sequence]),
        sum_{p.K, p.K, is_fused},
        buffers_(static_cast<T*>(memory)),
        prediction_(p.casts.prediction),
        carry_(p.casts.carry),
        sequence_(sequence),
        head_(head),
        first_column_(tile * block_columns) {
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes;
    lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
    first_of_strip_ = warp_ * warp_columns + Row::number() * columns;
  }

  static std::size_t shared_bytes(bool has_read) {
    return sizeof(T) * 2 * column_tile * (has_read ? at_read + Row::width : at_read);
  }

  __device__ void errors() {
    load_state(work_.initial);
    over_tokens<true>([&](std::uint32_t t, const T* token) { error(t, token); });
  }
  __device__ void gradients() {
    load_state(work_.final_gradient);
    over_tokens<false>([&](std::uint32_t t, const T* token) { gradient(t, token); });
    if (work_.initial_gradient != nullptr) store_state(work_.initial_gradient, sequence_);
  }

 private:
  // A token in shared memory: k, decay, q (backwards), v or do of the columns, beta, then erase k if there
  // is.
  static constexpr int at_decay = Row::width, at_q = 2 * Row::width, at_columns = 3 * Row::width,
                       at_beta = at_columns + block_columns, at_read = at_beta + (whole ? 4 : block_columns);

  __device__ bool has_column(int c) const { return whole || first_column_ + first_of_strip_ + c < p_.V; }
  __device__ bool has_row(int n) const { return sum_.has(n); }

  template <bool forwards, class Body>
  __device__ void over_tokens(Body body) {
    const int tiles = static_cast<int>((range_.count + column_tile - 1) / column_tile);
    const auto tile_of = [&](int n) { return forwards ? n : tiles - 1 - n; };
    if (tiles > 0) stage<forwards>(tile_of(0), 0);
    __pipeline_commit();
    for (int n = 0; n < tiles; ++n) {
      if (n + 1 < tiles) stage<forwards>(tile_of(n + 1), (n + 1) % 2);
      __pipeline_commit();
      __pipeline_wait_prior(1);  // for all groups but the last
      __syncthreads();
      const std::uint32_t first = static_cast<std::uint32_t>(tile_of(n)) * column_tile;
      const int count = min(column_tile, static_cast<int>(range_.count - first));
      for (int i = 0; i < count; ++i) {
        const int t = forwards ? i : count - 1 - i;
        body(first + t, buffer(n % 2, t));
      }
      __syncthreads();
    }
  }
  __device__ T* buffer(int which, int token) const {
    return buffers_ + (which * column_tile + token) * (has_read() ? at_read + Row::width : at_read);
  }
  __device__ bool has_read() const { return !whole && work_.read != nullptr; }
  /// What predictions read the state along.
  __device__ void load_read(const T* token, const T (&key)[Row::elements], T (&read)[Row::elements]) const {
    if (has_read()) return Row::load(token + at_read, read);
#pragma unroll
    for (int n = 0; n < Row::elements; ++n) read[n] = key[n];
  }
  __device__ bool has_betas() const { return !whole && p_.strength == kda::Strength::value; }
  __device__ void load_betas(const T* token, T (&beta)[columns]) const {
#pragma unroll
    for (int c = 0; c < columns; ++c) beta[c] = token[has_betas() ? at_beta + first_of_strip_ + c : at_beta];
  }
  /// This warp's token of a tile, on its way to shared memory.
  template <bool forwards>
  __device__ void stage(int tile, int which) const {
    const std::uint32_t t = static_cast<std::uint32_t>(tile) * column_tile + warp_;
    if (t >= range_.count) return;
    const std::size_t token = std::size_t{range_.first} + t, row = work_.row(token, head_);
    T* const to = buffer(which, warp_);
    const T *const key = work_.k + work_.query_row(token, head_) * p_.K, *const decay =
                                                                             work_.decay + row * p_.K;
    const T* const query = work_.q + work_.query_row(token, head_) * p_.K;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int k = lane_ + r * warp_lanes, place = Row::place(k);
      if (!whole && k >= p_.K) continue;
      copy_later(to + place, key + k);
      copy_later(to + at_decay + place, decay + k);
      if constexpr (!forwards) copy_later(to + at_q + place, query + k);
      if (has_read()) copy_later(to + at_read + place, work_.read + row * p_.K + k);
    }
    const T* const of_columns = (forwards ? work_.v : work_.d_o) + row * p_.V + first_column_;
#pragma unroll
    for (int v = lane_; v < block_columns; v += warp_lanes) {
      if (!whole && first_column_ + v >= p_.V) continue;
      copy_later(to + at_columns + v, of_columns + v);
      if (has_betas()) copy_later(to + at_beta + v, work_.beta + row * p_.V + first_column_ + v);
    }
    if (lane_ == 0 && !has_betas()) copy_later(to + at_beta, work_.beta + row);
  }

  __device__ void load_state(const T* states) {
    const T* const state = states + work_.state(sequence_, head_, p_);
#pragma unroll
    for (int n = 0; n < Row::elements; ++n)
#pragma unroll
      for (int c = 0; c < columns; ++c)
        S_[c][n] = has_row(n) && has_column(c)
                       ? state[Row::index(n) * p_.V + first_column_ + first_of_strip_ + c]
                       : T(0);
  }
  __device__ void store_state(T* states, std::size_t number) const {
    T* const state = states + work_.state(number, head_, p_) + first_column_ + first_of_strip_;
#pragma unroll
    for (int n = 0; n < Row::elements; ++n) {
      if (!has_row(n)) continue;
      if constexpr (whole && columns == 2) {
        struct alignas(2 * sizeof(T)) Pair {
          T x[2];
        };
        *reinterpret_cast<Pair*>(state + Row::index(n) * p_.V) = {S_[0][n], S_[1][n]};
      } else {
#pragma unroll
        for (int c = 0; c < columns; ++c)
          if (has_column(c)) state[Row::index(n) * p_.V + c] = S_[c][n];
      }
    }
  }
  /// What a column's sum and beta times it go to.
  __device__ void store_column(int c, std::uint32_t t, T* sums, T sum, T* weighted, T times_beta) const {
    if (Row::lane() != c || !has_column(c)) return;
    const std::size_t at =
        work_.row(std::size_t{range_.first} + t, head_) * p_.V + first_column_ + first_of_strip_ + c;
    sums[at] = sum;
    weighted[at] = times_beta;
  }
  __device__ void round_carried() {
    if (carry_ == kda::Rounding::none) return;
#pragma unroll
    for (int c = 0; c < columns; ++c) round_all(carry_, S_[c]);
  }

  __device__ void error(std::uint32_t t, const T* token) {
    if (t % segment_tokens<T> == 0) store_state(work_.checkpoints, range_.segment + t / segment_tokens<T>);
    T key[Row::elements], read[Row::elements], decay[Row::elements], prediction[columns], beta[columns];
    Row::load(token, key);
    load_read(token, key, read);
    Row::load(token + at_decay, decay);
    load_betas(token, beta);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#pragma unroll
      for (int n = 0; n < Row::elements; ++n) S_[c][n] = S_[c][n] * decay[n];  // P_t = diag(e^g_t) S_t-1
      prediction[c] = sum_.of_lane(read, S_[c]);
    }
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const T e = token[at_columns + first_of_strip_ + c] -
                  kda::rounded(prediction_, sum_.total(prediction[c]));  // v_t - P_t^T k_t
      const T write = e * beta[c];
      store_column(c, t, work_.e, e, work_.write, write);
#pragma unroll
      for (int n = 0; n < Row::elements; ++n)
        S_[c][n] = sum_.multiply_add(key[n], write, S_[c][n]);  // S_t = P_t + k_t (beta_t e_t)^T
    }
    round_carried();
  }

  __device__ void gradient(std::uint32_t t, const T* token) {
    T q[Row::elements], key[Row::elements], read[Row::elements], decay[Row::elements], sum[columns],
        beta[columns];
    Row::load(token + at_q, q);
    Row::load(token, key);
    load_read(token, key, read);
    Row::load(token + at_decay, decay);
    load_betas(token, beta);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const T d_o = token[at_columns + first_of_strip_ + c];
#pragma unroll
      for (int n = 0; n < Row::elements; ++n)
        S_[c][n] = sum_.multiply_add(q[n], d_o, S_[c][n]);  // D_t += q_t do_t^T
      sum[c] = sum_.of_lane(key, S_[c]);
    }
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const T r = kda::rounded(prediction_, sum_.total(sum[c]));  // D_t^T k_t
      const T y = r * beta[c];
      store_column(c, t, work_.r, r, work_.y, y);
#pragma unroll
      for (int n = 0; n < Row::elements; ++n)
        S_[c][n] = sum_.multiply_add(-read[n], y, S_[c][n]) * decay[n];  // D_t-1 = diag(e^g) (D_t - k y^T)
    }
    round_carried();
  }

  const DeviceProblem& p_;
  const BackwardWork<T>& work_;
  const BackwardRange range_;
  const StripSum<Row, whole> sum_;
  T* const buffers_;
  const kda::Rounding prediction_, carry_;
  const int sequence_, head_, first_column_;
  int warp_, lane_, first_of_strip_;
  T S_[columns][Row::elements];
};

template <class T, int rows, bool whole>
__global__ void __launch_bounds__(column_warps* warp_lanes)
    backward_columns_kernel(const __grid_constant__ DeviceProblem p,
                            const __grid_constant__ BackwardWork<T> work, bool is_fused, int tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  Columns<T, rows, whole> columns(p, work, is_fused, static_cast<int>(blockIdx.x) / tiles, blockIdx.y,
                                  static_cast<int>(blockIdx.x) % tiles, memory);
  if (blockIdx.z == 0) {
    columns.errors();
  } else {
    columns.gradients();
  }
}

template <class T, int rows, bool whole>
void launch_columns(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work) {
  using Block = Columns<T, rows, whole>;
  const int tiles = (p.V + Block::block_columns - 1) / Block::block_columns;
  launch("gpu-recurrent backwards, columns", backward_columns_kernel<T, rows, whole>,
         dim3(tiles * work.sequence_count, work.heads, 2), column_warps * warp_lanes,
         Block::shared_bytes(work.read != nullptr), p, work, is_fused, tiles);
}

}  // namespace

/// As many rows of a lane as K needs; the usual widths in the arithmetic that has to be fast.
template <class T>
void launch_backward_columns(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work) {
  if (is_fused && p.V % 64 == 0 && p.strength == kda::Strength::head) {
    if (p.K == 64) return launch_columns<T, 2, true>(is_fused, p, work);
    if (p.K == 128) return launch_columns<T, 4, true>(is_fused, p, work);
  }
  if (p.K <= 128) return launch_columns<T, 4, false>(is_fused, p, work);
  launch_columns<T, 8, false>(is_fused, p, work);
}

}  // namespace kda_check::cuda

// gpu-recurrent backwards, along the rows of the state (recurrent_backward.cuh). A strip of sixteen lanes has
// a few rows of the gradient of the state in registers over the whole sequence, and adds up over v. The
// states P_t of a few tokens are there beside it: computed again from the checkpoint of the segment.
//
// Included by a file for each type that is computed in: these kernels take the compiler longest.
#pragma once

#include <string>

#include "base/error.hpp"
#include "cuda/device/device.hpp"
#include "cuda/variants/recurrent/recurrent_backward.cuh"

namespace kda_check::cuda {

namespace {

/// One head of one sequence, block_rows rows; of these as many elements as there is room for, 32 `values`, or
/// as there are from first_value on. whole: V fills all lanes and nothing is erased by a gate, what has to be
/// fast.
template <class T, int values, bool whole>
class Rows {
 public:
  using Row = Strip<16, values>;
  static constexpr int warps = sizeof(T) * values > 32 ? 4 : 8;
  static constexpr int threads = warps * warp_lanes;
  static constexpr int rows = sizeof(T) * values > 16 ? 1 : 2;  ///< of a strip
  static constexpr int block_rows = warps * Row::strips * rows;

  __device__ Rows(const DeviceProblem& p, const BackwardWork<T>& work, bool is_fused, int first_value,
                  int sequence, int head, int tile, void* memory)
      : p_(p),
        work_(work),
        range_(work.ranges[sequence]),
        sum_{min(p.V - first_value, Row::width), p.V, is_fused},
        buffers_(static_cast<T*>(memory)),
        carry_(p.casts.carry),
        first_value_(first_value),
        sequence_(sequence),
        head_(head),
        first_row_(tile * block_rows) {
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes;
    lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
    first_of_strip_ = (warp_ * Row::strips + Row::number()) * rows;
  }

  static std::size_t shared_bytes() { return sizeof(T) * 2 * buffer_elements; }

  __device__ void run() {
    const T* const final_gradient = work_.final_gradient + work_.state(sequence_, head_, p_);
#pragma unroll
    for (int row = 0; row < rows; ++row)
#pragma unroll
      for (int n = 0; n < Row::elements; ++n)
        D_[row][n] = has_element(row, n) ? final_gradient[element(row, n)] : T(0);
    const int segments = static_cast<int>((range_.count + segment - 1) / segment);
    if (segments > 0) stage(segments - 1, (segments - 1) % 2);
    __pipeline_commit();
    for (int s = segments - 1; s >= 0; --s) {
      if (s > 0) stage(s - 1, (s - 1) % 2);
      __pipeline_commit();
      __pipeline_wait_prior(1);  // for all groups but the last
      __syncthreads();
      const int count = count_of(s);
      for (int last = (count - 1) / history; last >= 0; --last) group(s, last * history, count);
      __syncthreads();
    }
  }

 private:
  static constexpr int segment = segment_tokens<T>;
  static constexpr int by_query = 0, by_write = 1, by_prediction = 2, by_decay = 3, kinds = 4;  ///< sums
  static constexpr int history = sizeof(T) == sizeof(float) ? 4 : 2;  ///< states P_t in registers
  // A token in shared memory: beta e, do and beta r; q, k and decay of the rows.
  static constexpr int at_output = Row::width, at_y = 2 * Row::width, at_q = 3 * Row::width,
                       at_key = at_q + block_rows, at_decay = at_key + block_rows,
                       at_read = whole ? at_key : at_decay + block_rows,  ///< erase k, or k
      token_elements = at_decay + (whole ? 1 : 2) * block_rows;
  // Behind the tokens of a segment: its checkpoint, each thread's elements in its own place.
  static constexpr int buffer_elements = segment * token_elements + rows * Row::elements * threads;

  __device__ int count_of(int s) const { return min(segment, static_cast<int>(range_.count) - s * segment); }
  __device__ bool has_row(int row) const { return whole || first_row_ + first_of_strip_ + row < p_.K; }
  __device__ bool has_element(int row, int n) const { return has_row(row) && sum_.has(n); }
  __device__ std::size_t element(int row, int n) const {
    return std::size_t(first_row_ + first_of_strip_ + row) * p_.V + first_value_ + Row::index(n);
  }
  __device__ std::size_t token_of(int s, int t) const {
    return std::size_t{range_.first} + static_cast<std::size_t>(s) * segment + t;
  }
  /// Where the sums of rows wait that are wider than a strip.
  __device__ CarriedSums<T> carried(int s, int t, int row, int kind) const {
    if (whole || work_.carried_sums == nullptr || !has_row(row)) return {};
    const std::size_t at = work_.row(token_of(s, t), head_) * p_.K + first_row_ + first_of_strip_ + row;
    return {work_.carried_sums + (at * kinds + kind) * warp_lanes, first_value_ == 0,
            first_value_ + Row::width >= p_.V};
  }
  __device__ const T* token(int s, int t) const {
    return buffers_ + s % 2 * buffer_elements + t * token_elements;
  }

  /// A segment on its way to shared memory.
  __device__ void stage(int s, int which) const {
    T* const buffer = buffers_ + which * buffer_elements;
    const int count = count_of(s);
    for (int t = warp_; t < count; t += warps) {
      const std::size_t token = token_of(s, t), row = work_.row(token, head_);
      T* const to = buffer + t * token_elements;
      const std::size_t from = row * p_.V + first_value_;
      const T *const write = work_.write + from, *const d_o = work_.d_o + from, *const y = work_.y + from;
#pragma unroll
      for (int r = 0; r < values; ++r) {
        const int v = lane_ + r * warp_lanes, place = Row::place(v);
        if (!whole && v >= sum_.count) continue;
        copy_later(to + place, write + v);
        copy_later(to + at_output + place, d_o + v);
        copy_later(to + at_y + place, y + v);
      }
      if (lane_ < block_rows && (whole || first_row_ + lane_ < p_.K)) {
        const std::size_t query = work_.query_row(token, head_) * p_.K + first_row_ + lane_;
        copy_later(to + at_q + lane_, work_.q + query);
        copy_later(to + at_key + lane_, work_.k + query);
        copy_later(to + at_decay + lane_, work_.decay + row * p_.K + first_row_ + lane_);
        if constexpr (!whole)
          copy_later(to + at_read + lane_,
                     work_.read == nullptr ? work_.k + query : work_.read + row * p_.K + first_row_ + lane_);
      }
    }
    const T* const checkpoint =
        work_.checkpoints + work_.state(range_.segment + static_cast<std::size_t>(s), head_, p_);
    T* const mine = buffer + segment * token_elements + threadIdx.x;
#pragma unroll
    for (int row = 0; row < rows; ++row)
#pragma unroll
      for (int n = 0; n < Row::elements; ++n)
        if (has_element(row, n))
          copy_later(mine + (row * Row::elements + n) * threads, checkpoint + element(row, n));
  }

  /// Tokens [first, first + history) of segment s, those before `count`.
  __device__ void group(int s, int first, int count) {
    T S[rows][Row::elements];
    const T* const mine = token(s, segment) + threadIdx.x;
#pragma unroll
    for (int row = 0; row < rows; ++row)
#pragma unroll
      for (int n = 0; n < Row::elements; ++n) S[row][n] = mine[(row * Row::elements + n) * threads];
    for (int t = 0; t < first; ++t) {
      T write[Row::elements];
      Row::load(token(s, t), write);
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        const T key = token(s, t)[at_key + first_of_strip_ + row],
                decay = token(s, t)[at_decay + first_of_strip_ + row];
#pragma unroll
        for (int n = 0; n < Row::elements; ++n)
          S[row][n] = sum_.multiply_add(write[n], key, S[row][n] * decay);
      }
      round_carried(S);
    }
    T P[history][rows][Row::elements], dq[history][rows];
#pragma unroll
    for (int i = 0; i < history; ++i)
      if (first + i < count) forwards(s, first + i, S, P[i], dq[i]);
#pragma unroll
    for (int i = history - 1; i >= 0; --i)
      if (first + i < count) backwards(s, first + i, P[i], dq[i]);
  }

  /// P_t, and this lane's part of S_t do_t.
  __device__ void forwards(int s, int t, T (&S)[rows][Row::elements], T (&P)[rows][Row::elements],
                           T (&dq)[rows]) const {
    const T* const at = token(s, t);
    T write[Row::elements], d_o[Row::elements];
    Row::load(at, write);
    Row::load(at + at_output, d_o);
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const T key = at[at_key + first_of_strip_ + row], decay = at[at_decay + first_of_strip_ + row];
#pragma unroll
      for (int n = 0; n < Row::elements; ++n) {
        P[row][n] = S[row][n] * decay;
        S[row][n] = sum_.multiply_add(write[n], key, P[row][n]);
      }
    }
    round_carried(S);
#pragma unroll
    for (int row = 0; row < rows; ++row) dq[row] = sum_.of_lane(d_o, S[row], carried(s, t, row, by_query));
  }

  __device__ void backwards(int s, int t, const T (&P)[rows][Row::elements], const T (&dq)[rows]) {
    const T* const at = token(s, t);
    T write[Row::elements], d_o[Row::elements], y[Row::elements], part[kinds * rows];
    Row::load(at, write);
    Row::load(at + at_output, d_o);
    Row::load(at + at_y, y);
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const T q = at[at_q + first_of_strip_ + row], read = at[at_read + first_of_strip_ + row],
              decay = at[at_decay + first_of_strip_ + row];
#pragma unroll
      for (int n = 0; n < Row::elements; ++n) D_[row][n] = sum_.multiply_add(d_o[n], q, D_[row][n]);  // D_t
      part[by_query * rows + row] = dq[row];
      part[by_write * rows + row] = sum_.of_lane(write, D_[row], carried(s, t, row, by_write));
      part[by_prediction * rows + row] = sum_.of_lane(y, P[row], carried(s, t, row, by_prediction));
#pragma unroll
      for (int n = 0; n < Row::elements; ++n)
        D_[row][n] = sum_.multiply_add(y[n], -read, D_[row][n]);  // D'_t = D_t - k_t (beta_t r_t)^T
      part[by_decay * rows + row] = sum_.of_lane(D_[row], P[row], carried(s, t, row, by_decay));
#pragma unroll
      for (int n = 0; n < Row::elements; ++n) D_[row][n] = D_[row][n] * decay;
    }
    round_carried(D_);
    if (!whole && first_value_ + Row::width < p_.V) return;  // there are more parts to come
    const T mine = sum_.totals(part);
    using Sum = StripSum<Row, whole>;
    const int number = Sum::template value_of_lane<kinds * rows>(), kind = number / rows, row = number % rows;
    // The lane of a sum by_prediction and that of the sum by_write differ in the bits of 1 and 2.
    const T other = Row::partner(mine, (by_write ^ by_prediction) * rows * (Row::lanes / (kinds * rows)));
    if (!Sum::template has_value<kinds * rows>() || !has_row(row)) return;
    const std::size_t place = work_.row(token_of(s, t), head_) * p_.K + first_row_ + first_of_strip_ + row;
    if (!whole && work_.dread != nullptr) {  // the key that is written, and what is read along, apart
      T* const to = kind == by_query   ? work_.dq
                    : kind == by_write ? work_.dk
                    : kind == by_decay ? work_.dg
                                       : work_.dread;
      to[place] = kind == by_prediction ? -mine : mine;
      return;
    }
    if (kind == by_prediction) return;
    T* const to = kind == by_query ? work_.dq : kind == by_write ? work_.dk : work_.dg;
    to[place] = kind == by_write ? mine - other : mine;
  }

  __device__ void round_carried(T (&x)[rows][Row::elements]) const {
    if (carry_ == kda::Rounding::none) return;
#pragma unroll
    for (int row = 0; row < rows; ++row) round_all(carry_, x[row]);
  }

  const DeviceProblem& p_;
  const BackwardWork<T>& work_;
  const BackwardRange range_;
  const StripSum<Row, whole> sum_;
  T* const buffers_;
  const kda::Rounding carry_;
  const int first_value_, sequence_, head_, first_row_;
  int warp_, lane_, first_of_strip_;
  T D_[rows][Row::elements];
};

template <class T, int values, bool whole>
__global__ void __launch_bounds__(Rows<T, values, whole>::threads, 2)
    backward_rows_kernel(const __grid_constant__ DeviceProblem p,
                         const __grid_constant__ BackwardWork<T> work, bool is_fused, int first_value,
                         int tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  Rows<T, values, whole>(p, work, is_fused, first_value, static_cast<int>(blockIdx.x) / tiles, blockIdx.y,
                         static_cast<int>(blockIdx.x) % tiles, memory)
      .run();
}

template <class T, int values, bool whole>
void launch_rows(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work) {
  using Block = Rows<T, values, whole>;
  if (Block::shared_bytes() > shared_memory())
    throw Error(ErrorKind::environment,
                "gpu-recurrent backwards with V = " + std::to_string(p.V) + " takes " +
                    std::to_string(Block::shared_bytes() / 1024) +
                    " KB of shared memory, and this device has " + std::to_string(shared_memory() / 1024),
                {}, "--no-backward runs the forward pass alone");
  const int tiles = (p.K + Block::block_rows - 1) / Block::block_rows;
  for (int first_value = 0; first_value < p.V; first_value += Block::Row::width)
    launch("gpu-recurrent backwards, rows", backward_rows_kernel<T, values, whole>,
           dim3(tiles * work.sequence_count, work.heads), Block::threads, Block::shared_bytes(), p, work,
           is_fused, first_value, tiles);
}

}  // namespace

/// As many elements of a lane as V needs; the usual widths in the arithmetic that has to be fast.
template <class T>
void launch_backward_rows(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work) {
  if (is_fused && p.K % 32 == 0 && work.read == nullptr) {
    if (p.V == 64) return launch_rows<T, 2, true>(is_fused, p, work);
    if (p.V == 128) return launch_rows<T, 4, true>(is_fused, p, work);
  }
  if (p.V <= 128) return launch_rows<T, 4, false>(is_fused, p, work);
  launch_rows<T, 8, false>(is_fused, p, work);
}

}  // namespace kda_check::cuda

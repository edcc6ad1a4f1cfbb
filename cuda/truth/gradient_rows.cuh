// The pass of the gradient oracle along the rows, from the last token to the first: dq, dk and dg, whose sums
// run over V, and D. By now e, w, r and dv are known, so nothing is waited for but the sums.
//
// A block has four rows of the state of a head, a warp 32 columns of them: eight lanes a row, each with four
// columns eight apart, which is one of the eight partial sums. The partial sums of a token go from warp to
// warp, a token a step: warp w is w tokens behind the first. Behind the last one a warp adds the partial
// sums.
//
// The states P_t of four tokens are in shared memory, each where a token that is done was: while one group of
// tokens is gone through backwards, that before it is computed forwards from the state that enters it.
#pragma once

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/truth/chain.cuh"
#include "cuda/truth/gradient_problem.cuh"

namespace kda_check::cuda {

constexpr int row_block = warp_lanes / kda::partial_sums;    ///< rows of a block
constexpr int row_columns = warp_lanes / kda::partial_sums;  ///< of a lane

/// Shared memory of a warp with columns, in doubles.
struct RowShared {
  static constexpr int channels = row_block * 8;              ///< of a token: ChannelPairs
  static constexpr int at_channels = 12 * warp_lanes,         // behind twelve numbers a column
      at_strength = at_channels + 2 * channels,               // of two tokens
      slot = at_strength + 2;                                 // beta, and what aligns the next
  static constexpr int token = 3 * row_columns * warp_lanes;  // P_t and M(P_t)
  static constexpr int numbers = 3 * row_sums;                // of partial sums
  static constexpr int handed = numbers * warp_lanes;
  static constexpr int warp = 2 * slot + group_tokens * token + 2 * handed;
  static __host__ __device__ int warps(int value_stride) {
    return (value_stride + warp_lanes - 1) / warp_lanes;
  }
  static __host__ __device__ std::size_t bytes(int value_stride) {
    return sizeof(double) * std::size_t(warps(value_stride)) * warp;
  }
};

/// whole: V is a multiple of 32.
template <class Step, bool whole>
class GradientRows {
 public:
  using Number = typename Step::Number;
  using Gradient = kda::StateGradient<Step, double>;
  using Sum = kda::PartialSum<Step, double>;

  __device__ GradientRows(const GradientPortion& p, double* memory)
      : p_(p),
        piece_(p.pieces[blockIdx.z]),
        head_(static_cast<int>(blockIdx.y)),
        first_row_(static_cast<int>(blockIdx.x) * row_block),
        warps_(RowShared::warps(p.value_stride)),
        warp_(static_cast<int>(threadIdx.x) / warp_lanes),
        lane_(static_cast<int>(threadIdx.x) % warp_lanes),
        row_(lane_ / kda::partial_sums),
        tokens_(static_cast<int>(piece_.count)),
        groups_(groups_of(tokens_)),
        first_column_(warp_ * warp_lanes),
        columns_(min(row_columns, (p.value_stride - first_column_) / kda::partial_sums)),
        ring_(memory + warp_ * RowShared::warp),
        history_(ring_ + 2 * RowShared::slot + lane_),
        handed_(memory + 2 * RowShared::slot + group_tokens * RowShared::token) {
    // Rows beyond K and columns beyond V are zeros.
    if (warp_ < warps_)
      for (int i = lane_; i < RowShared::warp; i += warp_lanes) ring_[i] = 0;
    __syncthreads();
  }

  __device__ void run() {
    if (warp_ < warps_) begin();
    for (int step = 0; step < tokens_ + warps_; ++step) {
      const int i = step - warp_;  // token, from the last one
      if (i >= 0 && i < tokens_) {
        if (warp_ < warps_)
          go_on(i, step);
        else
          add_partial_sums(i, step);
      }
      __syncthreads();
    }
    if (warp_ < warps_) end();
  }

 private:
  /// Numbers of a column in the ring.
  enum : int {
    w_hi,
    w_lo,
    w_terms,
    d_o,
    dv_hi,
    dv_lo,
    dv_size,
    e_size,
    r_terms,
    next_hi,
    next_lo,
    next_terms
  };

  __device__ bool has(int j) const { return whole || j < columns_; }
  __device__ int column(int j) const {
    return first_column_ + j * kda::partial_sums + lane_ % kda::partial_sums;
  }
  __device__ bool has_row() const { return first_row_ + row_ < p_.K; }
  /// Of [tokens][heads].
  __device__ std::size_t token(int t) const { return (std::size_t(piece_.first) + t) * p_.heads + head_; }
  /// The first token of a group.
  __device__ int begin_of(int group) const {
    return group == 0 ? 0 : tokens_ - (groups_ - group) * group_tokens;
  }
  __device__ int group_of(int t) const { return groups_ - 1 - (tokens_ - 1 - t) / group_tokens; }
  /// Where in the history token `at` of a group is: the next group is laid down as this one is used up.
  __device__ double* place(int group, int at) const {
    const int slot = (groups_ - 1 - group) % 2 == 0 ? at : group_tokens - 1 - at;
    return history_ + slot * RowShared::token;
  }

  __device__ void begin() {
#pragma unroll
    for (int j = 0; j < row_columns; ++j) {
      D_[j] = {Step::exact(0.0), 0.0};
      if (!has(j) || !has_row()) continue;
      if (piece_.ends()) {
        const double x =
            p_.stored_state(p_.state_gradient, piece_.sequence, head_, first_row_ + row_, column(j));
        D_[j] = {Step::exact(x), numeric::absolute(x)};
      } else {
        const std::size_t at = p_.state_at(blockIdx.z, head_, first_row_ + row_, column(j));
        D_[j] = {Step::of(p_.gradients.hi[at], p_.gradients.lo[at]), p_.gradients.magnitude[at]};
      }
    }
    if (tokens_ == 0) return;
    load_group(groups_ - 1);
    for (int t = begin_of(groups_ - 1); t < tokens_; ++t) {
      fetch_next(ring_, t);
      wait_for_copies();
      __syncwarp();
      forwards(ring_, place(groups_ - 1, t - begin_of(groups_ - 1)));
      __syncwarp();
    }
    fetch(0);
  }
  __device__ void end() {
#pragma unroll
    for (int j = 0; j < row_columns; ++j) {
      if (!has(j) || !has_row()) continue;
      const std::size_t at = p_.state_at(blockIdx.z, head_, first_row_ + row_, column(j));
      const numeric::DoubleDouble x = Step::pair(D_[j].value);
      p_.gradients.hi[at] = x.hi, p_.gradients.lo[at] = x.lo, p_.gradients.magnitude[at] = D_[j].magnitude;
    }
  }

  /// The state that enters a group.
  __device__ void load_group(int group) {
#pragma unroll
    for (int j = 0; j < row_columns; ++j) {
      S_[j] = Step::exact(0.0), M_[j] = 0;
      if (!has(j) || !has_row()) continue;
      const std::size_t at =
          p_.state_at(std::size_t(piece_.group) + group, head_, first_row_ + row_, column(j));
      S_[j] = Step::of(p_.groups.hi[at], p_.groups.lo[at]), M_[j] = p_.groups.magnitude[at];
    }
  }

  /// Which token is computed forwards while token t is gone through backwards; none: negative.
  __device__ int next_of(int t) const {
    const int group = group_of(t);
    if (group == 0) return -1;
    const int at = begin_of(group) + group_tokens - 1 - t, next = begin_of(group - 1) + at;
    return next < begin_of(group) ? next : -1;
  }

  // To the ring, by all lanes of the warp.
  __device__ void fetch(int i) const {
    if (i >= tokens_) return;
    double* const slot = ring_ + i % 2 * RowShared::slot;
    const int t = tokens_ - 1 - i, next = next_of(t);
    if (first_column_ + lane_ < p_.value_stride) {
      const std::size_t at = token(t) * p_.value_stride + first_column_ + lane_;
      const double* const from[] = {p_.write.hi,     p_.write.lo,        p_.write.magnitude,
                                    p_.incoming,     p_.dv.hi,           p_.dv.lo,
                                    p_.dv.magnitude, p_.error.magnitude, p_.residual_terms};
#pragma unroll
      for (int n = 0; n < next_hi; ++n) copy_to_shared<8>(slot + n * warp_lanes + lane_, from[n] + at);
    }
    fetch_channels(slot + RowShared::at_channels, t);
    if (lane_ == 0) copy_to_shared<8>(slot + RowShared::at_strength, p_.strengths + 2 * token(t));
    if (next >= 0) fetch_next(slot, next);
  }
  __device__ void fetch_next(double* slot, int t) const {
    if (first_column_ + lane_ < p_.value_stride) {
      const std::size_t at = token(t) * p_.value_stride + first_column_ + lane_;
      const double* const from[] = {p_.write.hi, p_.write.lo, p_.write.magnitude};
#pragma unroll
      for (int n = 0; n < 3; ++n) copy_to_shared<8>(slot + (next_hi + n) * warp_lanes + lane_, from[n] + at);
    }
    fetch_channels(slot + RowShared::at_channels + RowShared::channels, t);
  }
  __device__ void fetch_channels(double* to, int t) const {
    if (lane_ >= RowShared::channels / 2 || first_row_ + lane_ / 4 >= p_.K) return;
    copy_to_shared<16>(
        to + 2 * lane_,
        reinterpret_cast<const double*>(p_.channels + token(t) * p_.K + first_row_) + 2 * lane_);
  }
  __device__ double number(const double* slot, int n, int j) const {
    return slot[n * warp_lanes + j * kda::partial_sums + lane_ % kda::partial_sums];
  }

  /// P_t and M(P_t) to the history, from the state that enters token t.
  __device__ void forwards(const double* slot, double* to) {
    const ChannelPairs& x =
        reinterpret_cast<const ChannelPairs*>(slot + RowShared::at_channels + RowShared::channels)[row_];
    const Number key = Step::of(x.k_hi, x.k_lo), decay = Step::of(x.decay_hi, x.decay_lo);
#pragma unroll
    for (int j = 0; j < row_columns; ++j) {
      if (!has(j)) break;
      const Number P = Step::scaled(S_[j], decay);
      const double M = M_[j] * x.decay_hi;
      const numeric::DoubleDouble pair = Step::pair(P);
      to[j * warp_lanes] = pair.hi;
      to[(row_columns + j) * warp_lanes] = pair.lo;
      to[(2 * row_columns + j) * warp_lanes] = M;
      S_[j] = Step::updated(key, Step::of(number(slot, next_hi, j), number(slot, next_lo, j)), P);
      M_[j] = kda::updated_magnitude(M, number(slot, next_terms, j), x.retained, x.written);
    }
  }

  /// What the warp before left of the sums of a token, and what this one leaves.
  __device__ double* handed(int warp, int step) const {
    return handed_ + warp * RowShared::warp + step % 2 * RowShared::handed;
  }

  /// Token i from the last.
  __device__ void go_on(int i, int step) {
    wait_for_copies();
    __syncwarp();
    fetch(i + 1);
    const int t = tokens_ - 1 - i, group = group_of(t), next = next_of(t);
    if (group > 0 && next == begin_of(group - 1)) load_group(group - 1);
    const double* const slot = ring_ + i % 2 * RowShared::slot;
    double* const states = place(group, t - begin_of(group));
    backwards(slot, states, step);
    if (next >= 0) forwards(slot, states);
  }

  __device__ void backwards(const double* slot, const double* states, int step) {
    Sum sums[row_sums];
    const double* const from = warp_ > 0 ? handed(warp_ - 1, step - 1) + lane_ : nullptr;
#pragma unroll
    for (int n = 0; n < row_sums; ++n) {
      sums[n] = {Step::exact(0.0), 0.0};
      if (from == nullptr) continue;
      sums[n] = {Step::of(from[3 * n * warp_lanes], from[(3 * n + 1) * warp_lanes]),
                 from[(3 * n + 2) * warp_lanes]};
    }
    const ChannelPairs& x = reinterpret_cast<const ChannelPairs*>(slot + RowShared::at_channels)[row_];
    const Number q = Step::of(x.q_hi, x.q_lo), key = Step::of(x.k_hi, x.k_lo),
                 decay = Step::of(x.decay_hi, x.decay_lo);
    const double strength = numeric::absolute(slot[RowShared::at_strength]);
#pragma unroll
    for (int j = 0; j < row_columns; ++j) {
      if (!has(j)) break;
      const Number P = Step::of(states[j * warp_lanes], states[(row_columns + j) * warp_lanes]),
                   w = Step::of(number(slot, w_hi, j), number(slot, w_lo, j)),
                   y = -Step::of(number(slot, dv_hi, j), number(slot, dv_lo, j));
      const double P_magnitude = states[(2 * row_columns + j) * warp_lanes], incoming = number(slot, d_o, j);
      const Gradient D = D_[j].entered(q, incoming);
      const double S_magnitude =
          kda::updated_magnitude(P_magnitude, number(slot, w_terms, j), x.retained, x.written);
      sums[int(RowSum::query)].add_query(Step::updated(key, w, P), S_magnitude, incoming);
      sums[int(RowSum::key)].add_key(D, w, number(slot, e_size, j), strength, P, P_magnitude, y,
                                     number(slot, dv_size, j));
      const Gradient before = D.before(key, y, number(slot, r_terms, j), x.retained, x.written);
      sums[int(RowSum::gate)].add_product(before.value, before.magnitude, P, P_magnitude);
      D_[j] = before.leaving(decay, x.decay_hi);
    }
    double* const to = handed(warp_, step) + lane_;
#pragma unroll
    for (int n = 0; n < row_sums; ++n) {
      const numeric::DoubleDouble sum = Step::pair(sums[n].sum);
      to[3 * n * warp_lanes] = sum.hi, to[(3 * n + 1) * warp_lanes] = sum.lo;
      to[(3 * n + 2) * warp_lanes] = sums[n].magnitude;
    }
  }

  /// From the first to the last, by a lane for each row and sum.
  __device__ void add_partial_sums(int i, int step) const {
    const int row = lane_ / row_sums, n = lane_ % row_sums;
    if (row >= row_block || first_row_ + row >= p_.K) return;
    const double* const from = handed(warps_ - 1, step - 1) + 3 * n * warp_lanes + row * kda::partial_sums;
    Number sum = Step::of(from[0], from[warp_lanes]);
    double magnitude = from[2 * warp_lanes];
#pragma unroll
    for (int lane = 1; lane < kda::partial_sums; ++lane) {
      Step::add_sum(Step::of(from[lane], from[warp_lanes + lane]), sum);
      magnitude = magnitude + from[2 * warp_lanes + lane];
    }
    const numeric::DoubleDouble value = Step::pair(Step::normalised(sum));
    const std::size_t t = std::size_t(piece_.row) + tokens_ - 1 - i,
                      at = (t * p_.heads + head_) * p_.K + first_row_ + row;
    p_.sums[n].hi[at] = value.hi, p_.sums[n].lo[at] = value.lo, p_.sums[n].magnitude[at] = magnitude;
  }

  const GradientPortion& p_;
  const GradientPiece piece_;
  const int head_, first_row_, warps_, warp_, lane_, row_, tokens_, groups_, first_column_, columns_;
  double *const ring_, *const history_, *const handed_;
  Gradient D_[row_columns];  ///< what leaves the token before
  Number S_[row_columns];    ///< the state of the group that is computed forwards
  double M_[row_columns];
};

constexpr int most_row_warps = widest_value / warp_lanes + 1;

template <class Step, bool whole>
__global__ void __launch_bounds__(most_row_warps* warp_lanes, 1)
    gradient_rows(const __grid_constant__ GradientPortion p) {
  extern __shared__ __align__(16) double gradient_memory[];
  GradientRows<Step, whole>(p, gradient_memory).run();
}

template <class Step, bool whole>
void launch_gradient_rows_in(const GradientPortion& p, cudaStream_t stream) {
  launch_on(stream, "launching the rows of the gradient oracle", gradient_rows<Step, whole>,
            dim3(static_cast<unsigned>((p.K + row_block - 1) / row_block), static_cast<unsigned>(p.heads),
                 static_cast<unsigned>(p.piece_count)),
            (RowShared::warps(p.value_stride) + 1) * warp_lanes, RowShared::bytes(p.value_stride), p);
}

}  // namespace kda_check::cuda

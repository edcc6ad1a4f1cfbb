// gpu-recurrent: the fused order of the decode kernels (docs/kda.md, "Recurrent forward").
//
// A warp owns `warp_columns` columns of a head's state and keeps them in registers over the whole sequence:
// lane l holds the rows k = l, l + 32, ... Sums over k are then tree:32: each lane adds its own rows, the
// lanes halve. A block prepares `tile` tokens at a time in shared memory - norm, scale, gate and exponential
// once for all its columns - and fetches the next ones while it works on these.
//
// Where tokens are few a state's way from memory and back is all there is: variants/decoding/step.cu runs the
// same recurrence over several column tiles a block.
//
// Included by a file for each type that is computed in: these kernels take the compiler longest.
#pragma once

#include "cuda/problem/gates.cuh"
#include "cuda/variants/recurrent/launch.cuh"
#include "cuda/variants/recurrent/states.cuh"

namespace kda_check::cuda {

namespace {

/// Four sums over the lanes at the price of two: as the tree halves the lanes, the halves take different
/// columns. Lane 16 i + 8 j + .. returns column 2 i + j. tree:32 for each.
template <class T>
__device__ T four_warp_sums(const T (&part)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
  T pair[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const T mine = upper ? part[2 + j] : part[j], theirs = upper ? part[j] : part[2 + j];
    pair[j] = mine + __shfl_xor_sync(whole_warp, theirs, 16);
  }
  const T mine = odd ? pair[1] : pair[0], theirs = odd ? pair[0] : pair[1];
  T sum = mine + __shfl_xor_sync(whole_warp, theirs, 8);
#pragma unroll
  for (int half = 4; half > 0; half /= 2) sum = sum + __shfl_xor_sync(whole_warp, sum, half);
  return sum;
}
constexpr int lanes_of_column = warp_lanes / warp_columns;
__device__ int column_of_lane() {
  return static_cast<int>(threadIdx.x) % warp_lanes / lanes_of_column;  // 2 i + j
}

/// One head of one sequence, `tiles` times block_columns columns. whole: K fills the rows of every lane and
/// the head has one beta, what has to be fast.
template <class T, bool is_fused, int rows, bool whole, int tiles = 1>
class Recurrence {
 public:
  __device__ Recurrence(const DeviceProblem& p, TokenRange tokens, std::size_t state, int head,
                        int first_column, void* memory)
      : p_(p),
        tokens_(tokens),
        state_(state),
        head_(head),
        first_column_(first_column),
        in_(static_cast<float*>(memory) + passing_elements, p.K),
        memory_(static_cast<float*>(memory)),
        prediction_(p.casts.prediction),
        carry_(p.casts.carry) {
    lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes;
#pragma unroll
    for (int r = 0; r < rows; ++r) valid_[r] = whole || lane_ + r * warp_lanes < p.K;
    lane_rows_ = whole ? rows : (p.K - lane_ + warp_lanes - 1) / warp_lanes;
  }

  __device__ void run() {
    amplitude_ = gate_amplitude<T>(p_, head_);
    load_state();
    Raw raw;
    fetch(0, raw);
    for (std::uint32_t first = 0; first < tokens_.count; first += tile) {
      prepare(first, raw);
      __syncthreads();
      fetch(first + tile, raw);
      const int count = min(tile, static_cast<int>(tokens_.count - first));
      for (int t = 0; t < count; ++t) step(t);
      __syncthreads();
      write_output(first, count);
    }
    store_state();
  }

  /// The same of one token, with as many columns as a block has, from a state in fp32 to another: in shared
  /// memory from when it comes until all columns are done.
  __device__ void run_one() {
    const PassingColumns<rows, tiles> state(p_, state_, first_column_, memory_);
    Raw raw;
    fetch(0, raw);  // on its way first: there is time to prepare it while the state comes
    state.send_for();
    amplitude_ = gate_amplitude<T>(p_, head_);
    prepare(0, raw);
    __pipeline_wait_prior(0);
    __syncthreads();
#pragma unroll 1
    for (tile_ = 0; tile_ < tiles; ++tile_) {
      state.take(tile_, S_);
      step(0);
      state.put(tile_, S_);
    }
    __syncthreads();
    state.send_back();
    for (tile_ = warp_; tile_ < tiles; tile_ += block_warps) write(0, 0);
  }

  /// Shared memory.
  static std::size_t bytes(int K) { return sizeof(float) * passing_elements + Prepared::bytes(K); }

 private:
  static constexpr int columns = tiles * block_columns, tokens = tiles > 1 ? 1 : tile,
                       passing_elements = tiles > 1 ? PassingColumns<rows, tiles>::elements : 0;
  using Raw = RawToken<T, rows, tiles, !whole>;
  using Prepared = Tile<T, columns, tokens, !whole>;

  __device__ int k_of(int r) const { return lane_ + r * warp_lanes; }
  __device__ int column(int c) const { return first_column_ + warp_ * warp_columns + c; }
  __device__ std::size_t token(std::uint32_t t) const { return std::size_t{tokens_.first} + t; }

  // The state comes and goes through this lane's places of a prepared token, a column at a time, in loops
  // that are not unrolled: what all element types need, once for each element in registers, would be most of
  // the kernel.
  __device__ T& own_place(int k) const { return in_.q[warp_ * p_.K + k]; }

  __device__ void load_state() {
#pragma unroll 1
    for (int c = 0; c < warp_columns; ++c) {
      const bool there = p_.initial_state.data != nullptr && column(c) < p_.V;
      if (there)
#pragma unroll 1
        for (int k = lane_; k < p_.K; k += warp_lanes)
          own_place(k) = load<T>(p_.initial_state, state_element(p_, state_, k, column(c)));
      of_column(c, [&](T(&s)[rows]) {
#pragma unroll
        for (int r = 0; r < rows; ++r) s[r] = there && valid_[r] ? own_place(k_of(r)) : T(0);
      });
    }
  }
  __device__ void store_state() {
#pragma unroll 1
    for (int c = 0; c < warp_columns && column(c) < p_.V; ++c) {
      of_column(c, [&](T(&s)[rows]) {
#pragma unroll
        for (int r = 0; r < rows; ++r)
          if (valid_[r]) own_place(k_of(r)) = s[r];
      });
#pragma unroll 1
      for (int k = lane_; k < p_.K; k += warp_lanes)
        store(own_place(k), p_.final_state.data, p_.final_state.dtype,
              state_element(p_, state_, k, column(c)));
    }
  }
  /// Calls body with column c, which is not known before the kernel runs: registers have no index.
  template <class Body>
  __device__ void of_column(int c, Body body) {
#pragma unroll
    for (int i = 0; i < warp_columns; ++i)
      if (i == c) body(S_[i]);
  }

  /// This warp's token of the tile that begins at `first`.
  __device__ void fetch(std::uint32_t first, Raw& raw) const {
    const std::uint32_t t = first + warp_;
    if (t >= tokens_.count) return;
    const TokenPlaces at = places(t);
    fetch_words<T>(p_.q, at.query, warp_lanes, lane_rows_, raw.q);
    fetch_words<T>(p_.k, at.query, warp_lanes, lane_rows_, raw.k);
    fetch_words<T>(p_.g, at.gate, warp_lanes, lane_rows_, raw.g);
    fetch_words<T>(p_.v, at.value, warp_lanes, columns_of_lane(), raw.v);
    if (whole || p_.strength == kda::Strength::head) return fetch_words<T>(p_.beta, at.beta, 0, 1, raw.beta);
    if (p_.strength == kda::Strength::value)
      return fetch_words<T>(p_.beta, at.value, warp_lanes, columns_of_lane(), raw.beta);
    fetch_words<T>(p_.erase, at.gate, warp_lanes, lane_rows_, raw.erase);
    fetch_words<T>(p_.write, at.value, warp_lanes, columns_of_lane(), raw.write);
  }
  __device__ int columns_of_lane() const {
    return (p_.V - first_column_ - lane_ + warp_lanes - 1) / warp_lanes;
  }
  __device__ TokenPlaces places(std::uint32_t t) const {
    const std::size_t query = p_.at(token(t), p_.H, p_.query_head(head_)),
                      value = p_.at(token(t), p_.HV, head_);
    return {query * p_.K + lane_, value * p_.K + lane_, value * p_.V + first_column_ + lane_, value};
  }

  /// Norm, scale and decay of this warp's token into shared memory.
  __device__ void prepare(std::uint32_t first, const Raw& raw) const {
    if (first + warp_ >= tokens_.count) return;
    const TokenPlaces at_token = places(first + warp_);
    T q[rows], key[rows], g[rows], v[tiles];
    values_of_words(raw.q, p_.q.dtype, at_token.query, q);
    values_of_words(raw.k, p_.k.dtype, at_token.query, key);
    values_of_words(raw.g, p_.g.dtype, at_token.gate, g);
    values_of_words(raw.v, p_.v.dtype, at_token.value, v);
    if (p_.qk_l2norm) {
      normalise(q);
      normalise(key);
    }
    gates(g);
    T decay[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) decay[r] = exponential(p_.exponential, g[r]);  // e^g
    round_all(p_.casts.decay, decay);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (!valid_[r]) continue;
      const int at = warp_ * p_.K + k_of(r);
      in_.q[at] = q[r] * T(p_.scale);
      in_.k[at] = key[r];
      in_.decay[at] = decay[r];
    }
    strengths(raw, at_token, key, v);
#pragma unroll
    for (int i = 0; i < tiles; ++i)
      in_.v[warp_ * columns + i * block_columns + lane_] = i < columns_of_lane() ? v[i] : T(0);
  }
  /// beta; or one for each column; or gates: erase k to be read along, write v for v, and 1 for beta.
  __device__ void strengths(const Raw& raw, const TokenPlaces& at_token, T (&read)[rows],
                            T (&v)[tiles]) const {
    if constexpr (whole) {
      T beta[1];
      values_of_words(raw.beta, p_.beta.dtype, at_token.beta, beta);
      if (lane_ == 0) in_.beta[warp_] = write_strength(p_, beta[0]);
    } else {
      const bool has_gates = p_.strength == kda::Strength::gates,
                 of_columns = p_.strength == kda::Strength::value;
      T beta[tiles];
      if (!has_gates)
        values_of_words(raw.beta, p_.beta.dtype, of_columns ? at_token.value : at_token.beta, beta);
      if (has_gates) {
        T erase[rows], write[tiles];
        values_of_words(raw.erase, p_.erase.dtype, at_token.gate, erase);
        values_of_words(raw.write, p_.write.dtype, at_token.value, write);
#pragma unroll
        for (int r = 0; r < rows; ++r) read[r] = erase[r] * read[r];
#pragma unroll
        for (int i = 0; i < tiles; ++i) v[i] = write[i] * v[i];
      }
#pragma unroll
      for (int r = 0; r < rows; ++r)
        if (valid_[r]) in_.read[warp_ * p_.K + k_of(r)] = read[r];
#pragma unroll
      for (int i = 0; i < tiles; ++i)
        in_.beta[warp_ * columns + i * block_columns + lane_] =
            has_gates ? T(1) : write_strength(p_, beta[of_columns ? i : 0]);
    }
  }
  /// Gates as they are stored to log decays, through this lane's places as the state is.
  __device__ void gates(T (&g)[rows]) const {
    if (p_.gate == kda::Gate::none) return;
    T* const mine = in_.decay + warp_ * p_.K;
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (valid_[r]) mine[k_of(r)] = g[r];
#pragma unroll 1
    for (int k = lane_; k < p_.K; k += warp_lanes) mine[k] = log_decay(p_, mine[k], head_, k, amplitude_);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (valid_[r]) g[r] = mine[k_of(r)];
  }
  __device__ void normalise(T (&x)[rows]) const {
    const T norm = warp_norm<is_fused>(x, valid_, p_.K);
#pragma unroll
    for (int r = 0; r < rows; ++r) x[r] = x[r] / norm;
    round_all(p_.casts.normalised, x);
  }

  /// The sums over k of weight_k S_kc for the four columns; this lane gets column_of_lane().
  __device__ T weighted_sum(const T (&weight)[rows]) const {
    T part[warp_columns];
#pragma unroll
    for (int c = 0; c < warp_columns; ++c) part[c] = warp_dot_part<is_fused>(weight, S_[c], valid_);
    if (whole || p_.K >= warp_lanes) return four_warp_sums(part);
    T sum = T(0);
#pragma unroll
    for (int c = 0; c < warp_columns; ++c) {
      const T of_column = warp_sum(part[c], p_.K);
      if (column_of_lane() == c) sum = of_column;
    }
    return sum;
  }

  __device__ void step(int t) {
    T q[rows], key[rows], read[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      q[r] = key[r] = read[r] = T(0);
      if (!valid_[r]) continue;
      const int at = t * p_.K + k_of(r);
      const T decay = in_.decay[at];
      q[r] = in_.q[at];
      key[r] = in_.k[at];
      read[r] = whole ? key[r] : in_.read[at];
#pragma unroll
      for (int c = 0; c < warp_columns; ++c) S_[c][r] = S_[c][r] * decay;  // P_t = diag(e^g_t) S_t-1
    }
    const int mine = t * columns + tile_ * block_columns + warp_ * warp_columns + column_of_lane();
    const T prediction = kda::rounded(prediction_, weighted_sum(read));  // P_t^T k_t
    const T write =
        (in_.v[mine] - prediction) * in_.beta[whole ? t : mine];  // beta_t e_t, e_t = v_t - P_t^T k_t
#pragma unroll
    for (int c = 0; c < warp_columns; ++c) {
      const T write_c = __shfl_sync(whole_warp, write, lanes_of_column * c);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        S_[c][r] = multiply_add<is_fused>(key[r], write_c, S_[c][r]);  // S_t = P_t + k_t (beta_t e_t)^T
    }
    if (carry_ != kda::Rounding::none)
#pragma unroll
      for (int c = 0; c < warp_columns; ++c) round_all(carry_, S_[c]);
    const T output = weighted_sum(q);  // o_t = S_t^T (scale q_t)
    if (lane_ % lanes_of_column == 0) in_.o[mine] = output;
  }

  /// Between two barriers: nobody writes o, whoever prepares next writes other arrays.
  __device__ void write_output(std::uint32_t first, int count) const {
    if (warp_ < count) write(first + warp_, warp_);
  }
  /// o of token t, the prepared one of that number, in the column tile at work.
  __device__ void write(std::uint32_t t, int prepared) const {
    const int in_block = tile_ * block_columns + lane_, v = first_column_ + in_block;
    if (v < p_.V)
      store_output(in_.o[prepared * columns + in_block], p_.at(token(t), p_.HV, head_) * p_.V + v);
  }
  /// What store() does. All warps wait for it: from fp32 to bf16 without a detour through fp64, but for a
  /// NaN, of which there is one.
  __device__ void store_output(T o, std::size_t at) const {
    if constexpr (std::is_same_v<T, float>)
      if (p_.o.dtype == numeric::DType::bf16 && o == o) {
        const auto bits = __builtin_bit_cast(std::uint32_t, numeric::through_bf16(o));
        static_cast<numeric::Bfloat16*>(p_.o.data)[at] = {static_cast<std::uint16_t>(bits >> 16)};
        return;
      }
    store(o, p_.o.data, p_.o.dtype, at);
  }

  const DeviceProblem& p_;
  const TokenRange tokens_;
  const std::size_t state_;
  const int head_;
  const int first_column_;
  const Prepared in_;
  float* const memory_;
  int tile_ = 0;  ///< the column tile at work
  const kda::Rounding prediction_, carry_;
  int lane_, warp_, lane_rows_;  ///< rows of this lane
  T amplitude_;
  bool valid_[rows];
  T S_[warp_columns][rows];
};

__host__ __device__ unsigned column_tiles(const DeviceProblem& p) {
  return (p.V + block_columns - 1) / block_columns;
}

template <class T, bool is_fused, int rows, bool whole>
__global__ void __launch_bounds__(block_warps* warp_lanes)
    recurrent_kernel(const __grid_constant__ DeviceProblem p, const TokenRange* sequences) {
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned tiles = column_tiles(p), sequence = blockIdx.x / tiles;
  const int head = blockIdx.y;
  Recurrence<T, is_fused, rows, whole, 1>(p, sequences[sequence], std::size_t{sequence} * p.HV + head, head,
                                          blockIdx.x % tiles * block_columns, memory)
      .run();
}

template <class T, bool is_fused, int rows, bool whole>
void launch_rows(const DeviceProblem& p, const TokenRange* sequences, int count) {
  const dim3 grid(column_tiles(p) * count, p.HV);
  launch("gpu-recurrent", recurrent_kernel<T, is_fused, rows, whole>, grid, block_warps * warp_lanes,
         Recurrence<T, is_fused, rows, whole, 1>::bytes(p.K), p, sequences);
}

/// The rows of a lane: as many as K needs, and for the usual widths and KDA's strengths all of them valid -
/// in the arithmetic that has to be fast.
template <class T, bool is_fused>
void launch_width(const DeviceProblem& p, const TokenRange* sequences, int count) {
  if constexpr (is_fused) {
    const bool of_head = p.strength == kda::Strength::head;
    if (of_head && p.K == 64) return launch_rows<T, is_fused, 2, true>(p, sequences, count);
    if (of_head && p.K == 128) return launch_rows<T, is_fused, 4, true>(p, sequences, count);
  }
  if (p.K <= 64) return launch_rows<T, is_fused, 2, false>(p, sequences, count);
  if (p.K <= 128) return launch_rows<T, is_fused, 4, false>(p, sequences, count);
  launch_rows<T, is_fused, 8, false>(p, sequences, count);
}

}  // namespace

template <class T>
void launch_recurrent(bool is_fused, const DeviceProblem& p, const TokenRange* sequences, int count) {
  is_fused ? launch_width<T, true>(p, sequences, count) : launch_width<T, false>(p, sequences, count);
}

}  // namespace kda_check::cuda

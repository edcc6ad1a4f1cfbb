// dG, the gradient of the cumulated gate, and the rest of dk and dbeta. First what comes through states and
// inverse (the end of B3): dG = q dq - k dk + beta dkb k e^G, in the last row + e^Gn (rows of h dh, summed) +
// sum_i k_i dk_i; dk += beta e^G dkb. Then what stays within the chunk (B4, backward_sums.cuh), and dg
// (B5). With an erase gate dk and the gradient of what predictions read the state along are apart.
//
// A block has a chunk, 32 channels at a time, a lane for each. So every sum is one thread's, and what is
// summed along a row (dbeta) is tree:32 by itself.
#include "cuda/variants/chunk/backward.cuh"
#include "cuda/variants/chunk/backward_gates.cuh"
#include "cuda/variants/chunk/backward_sums.cuh"

namespace kda_check::cuda {

namespace {

template <class T, bool is_fused, bool erases>
class IntraGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;

 public:
  __device__ IntraGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work, kda::DecayForm decay,
                            StagedSums<T>& staged)
      : Base(p, work, 1), decay_(decay), sums_(p, decay, chunk_.rows, staged), staged_(staged) {
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes, lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
    first_ = warp_ * warp_rows;
  }

  __device__ void run() {
    stage_scores();
    T of_beta[warp_rows] = {};
    for (int channel = 0; channel < p_.K; channel += channels) {
      stage(channel);
      if constexpr (erases) {
        const int k = min(channel + lane_, p_.K - 1);  // lanes beyond K have whatever there is
        reads_ = chunk_.row(forward_.read, 0, p_.K) + k;
        sums_.go_to(reads_, chunk_.stride(p_.K));
      }
      this->arrive();
      add_blocks();
      __syncthreads();
      if (channel + lane_ < p_.K) add_to_gradients(channel, of_beta);
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
  /// This warp's sums of B4.
  __device__ void add_blocks() const {
    using kda::Rounding;
    const CastPoints& casts = p_.casts;
    const bool rounds = std::is_same_v<T, float> &&
                        (casts.exponentials != Rounding::none || casts.score_operands != Rounding::none ||
                         casts.beta_key != Rounding::none);
    if (rounds) return sums_.add();
    BlockSums<T, is_fused, false, erases> plain(p_, decay_, chunk_.rows, staged_);
    if constexpr (erases) plain.go_to(reads_, chunk_.stride(p_.K));
    plain.add();
  }
  __device__ T score_operand(T x) const { return kda::rounded(p_.casts.score_operands, x); }

  /// As factors of products; those of pairwise sums, which are none, as they are.
  __device__ void stage_scores() {
    for (int i = warp_; i < chunk_.rows; i += warps) {
      const T *const dAqk = chunk_.row(work_.dAqk, i, forward_.C), *const dAkk =
                                                                       chunk_.row(work_.dAkk, i, forward_.C);
#pragma unroll
      for (int j = lane_; j < most_rows; j += warp_lanes) {
        if (j >= forward_.C) continue;
        const bool whole = sums_.is_pairwise() && i / block_rows == j / block_rows;
        staged_.dAqk[i][j] = whole ? dAqk[j] : score_operand(dAqk[j]);
        staged_.dAkk[i][j] = whole ? dAkk[j] : score_operand(dAkk[j]);
      }
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
    T sums[keys] = {};
    state_products<is_fused>(p_.casts.state_product, rows(forward_.h, forward_.exact_h),
                             rows(work_.dh, work_.exact_dh), p_.V, count, sums);
#pragma unroll
    for (int n = 0; n < keys; ++n)
      if (n < count && lane_ == 0) staged_.state_sums[of_warp + n] = sums[n];
  }
  /// Rows of an array that this thread goes through one after the other, `step` apart. An address a row, of
  /// every array, would be kept in registers from one group of channels to the next.
  template <class Element>
  struct Walk {
    Element* at;
    std::size_t step;
    __device__ Element* next() {
      Element* const here = at;
      at += step;
      return here;
    }
  };
  __device__ Walk<T> walk(T* array, int first, int step, int k) const {
    return {chunk_.row(array, first, p_.K) + k, step * chunk_.stride(p_.K)};
  }
  __device__ Walk<T> query_walk(T* array, int first, int step, int k) const {
    return {chunk_.query_row(array, first, p_.K) + k, std::size_t(step) * chunk_.queries * p_.K};
  }

  /// Lanes beyond K have whatever there is, and nobody asks for it.
  __device__ void stage(int channel) {
    const int k = channel + lane_;
    if (k < p_.K) {
      Walk<T> q = query_walk(forward_.q, warp_, warps, k), key = query_walk(forward_.k, warp_, warps, k),
              G = walk(forward_.G, warp_, warps, k), dk = walk(work_.dk, warp_, warps, k);
      T keys[warp_rows] = {}, dks[warp_rows] = {};
#pragma unroll
      for (int n = 0; n < warp_rows; ++n) {
        const int i = warp_ + n * warps;
        if (i >= chunk_.rows) break;
        __pipeline_memcpy_async(&staged_.q[i][lane_], q.next(), sizeof(T));
        __pipeline_memcpy_async(&staged_.G[i][lane_], G.next(), sizeof(T));
        staged_.k[i][lane_] = keys[n] = *key.next();
        dks[n] = *dk.next();
      }
      sum_keys(keys, dks);
    }
    stage_products(channel);
  }
  /// What the last row of dG takes of sum_i k_i dk_i, tree:32, but for the last three halvings: running sums
  /// l = warp_, warp_ + 8, ..., each of them of the rows l and l + 32, halved until one is left.
  __device__ void sum_keys(const T (&keys)[warp_rows], const T (&dk)[warp_rows]) {
    constexpr int sums = warp_lanes / warps;
    T sum[sums];
    const auto has_row = [&](int n) { return warp_ + n * warps < chunk_.rows; };
#pragma unroll
    for (int n = 0; n < sums; ++n) {
      sum[n] = keys[n] * dk[n];
      if (has_row(n + sums)) sum[n] = multiply_add<is_fused>(keys[n + sums], dk[n + sums], sum[n]);
    }
#pragma unroll
    for (int half = sums / 2; half > 0; half /= 2)
#pragma unroll
      for (int n = 0; n < half; ++n)
        if (has_row(n + half)) sum[n] = sum[n] + sum[n + half];
    staged_.key_sums[warp_][lane_] = sum[0];
  }
  /// What the last row of dG takes: e^Gn (rows of h dh, summed) + sum_i k_i dk_i.
  __device__ T of_last_row() const {
    T sum[warps] = {};
#pragma unroll
    for (int n = 0; n < warps; ++n) sum[n] = staged_.key_sums[n][lane_];
#pragma unroll
    for (int half = warps / 2; half > 0; half /= 2)
#pragma unroll
      for (int n = 0; n < half; ++n)
        if (n + half < chunk_.rows) sum[n] = sum[n] + sum[n + half];
    const T decay = exponential(p_.exponential, sums_.G(chunk_.rows - 1));
    return multiply_add<is_fused>(decay, staged_.state_sums[lane_], sum[0]);
  }
  /// body(r, row) for the rows whose gradients this warp finishes.
  template <class Body>
  __device__ void over_rows(Body body) const {
#pragma unroll
    for (int r = 0; r < warp_rows; ++r)
      if (first_ + r < chunk_.rows) body(r, first_ + r);
  }

  /// What came through the states and the inverse, and then what stayed in the chunk.
  __device__ void add_to_gradients(int channel, T (&of_beta)[warp_rows]) {
    const int k = channel + lane_, last = chunk_.rows - 1;
    T decays[warp_rows] = {}, dqs[warp_rows] = {}, dks[warp_rows] = {}, dkbs[warp_rows] = {};
    Walk<T> dq_rows = walk(work_.dq, first_, 1, k), dk_rows = walk(work_.dk, first_, 1, k),
            dkb_rows = walk(work_.dkb, first_, 1, k), to_dq = dq_rows, to_dk = dk_rows,
            to_dread = walk(erases ? work_.dread : work_.dk, first_, 1, k);
    over_rows([&](int r, int i) {
      dqs[r] = *dq_rows.next(), dks[r] = *dk_rows.next(), dkbs[r] = *dkb_rows.next();
      decays[r] = sums_.G(i);
    });
    sums_.exponentials(decays);
    over_rows([&](int r, int i) {
      const T k_i = sums_.key(i), q_i = sums_.q(i), beta = staged_.beta[i], decay = decays[r], dq = dqs[r],
              dqi = staged_.dq_sums[i][lane_], row = staged_.row_sums[i][lane_],
              column = staged_.column_sums[i][lane_];
      T dk = dks[r];
      const T through_w = beta * dkbs[r];
      T dG = multiply_add<is_fused>(q_i, dq, -(k_i * dk));
      const T read = sums_.read(i);
      dG = multiply_add<is_fused>(through_w, read * decay, dG);
      if (i == last) dG = dG + of_last_row();

      const T by_row = beta * row;
      of_beta[r] = channel == 0 ? row * read : multiply_add<is_fused>(row, read, of_beta[r]);
      *to_dq.next() = dq + dqi;
      T of_key;
      if constexpr (erases) {
        *to_dk.next() = dk + column;
        *to_dread.next() = multiply_add<is_fused>(through_w, decay, T(0)) + by_row;
        of_key = multiply_add<is_fused>(read, by_row, -(k_i * column));
      } else {
        dk = multiply_add<is_fused>(through_w, decay, dk);
        *to_dk.next() = dk + (by_row + column);
        of_key = k_i * (by_row - column);
      }
      staged_.column_sums[i][lane_] = dG + multiply_add<is_fused>(q_i, dqi, of_key);
    });
  }
  /// dg_t = dG_n + ... + dG_t, from the last row on.
  __device__ void sum_gates(int channel) const {
    const int k = channel + lane_;
    if (k >= p_.K) return;
    T* dg = chunk_.row(work_.dg, chunk_.rows - 1, p_.K) + k;
    T sum = staged_.column_sums[chunk_.rows - 1][lane_];
    *dg = sum;
#pragma unroll 8
    for (int i = chunk_.rows - 2; i >= 0; --i) {
      sum = sum + staged_.column_sums[i][lane_];
      dg -= chunk_.stride(p_.K);
      *dg = sum;
    }
  }

  const kda::DecayForm decay_;
  BlockSums<T, is_fused, true, erases> sums_;
  StagedSums<T>& staged_;
  int warp_, lane_, first_;
  const T* reads_ = nullptr;  ///< row 0 of what is read along, at this lane's channel
};

template <class T, bool is_fused, bool erases>
__global__ void __launch_bounds__(tile_threads, sizeof(T) == sizeof(float) ? 2 : 1)
    intra_gradients(const __grid_constant__ DeviceProblem p,
                    const __grid_constant__ ChunkBackwardWork<T> work, kda::DecayForm decay) {
  extern __shared__ __align__(16) unsigned char memory[];
  IntraGradients<T, is_fused, erases>(p, work, decay, *reinterpret_cast<StagedSums<T>*>(memory)).run();
}

template <class T, bool erases>
void launch_intra(bool is_fused, kda::DecayForm decay, const DeviceProblem& p,
                  const ChunkBackwardWork<T>& work) {
  launch("gpu-chunk backwards, within the chunk",
         is_fused ? intra_gradients<T, true, erases> : intra_gradients<T, false, erases>,
         dim3(work.forward.chunk_count, work.heads), tile_threads, sizeof(StagedSums<T>), p, work, decay);
}

}  // namespace

template <class T>
void launch_chunk_backward_intra(bool is_fused, kda::DecayForm decay, const DeviceProblem& p,
                                 const ChunkBackwardWork<T>& work) {
  work.dread == nullptr ? launch_intra<T, false>(is_fused, decay, p, work)
                        : launch_intra<T, true>(is_fused, decay, p, work);
}

template void launch_chunk_backward_intra(bool, kda::DecayForm, const DeviceProblem&,
                                          const ChunkBackwardWork<float>&);
template void launch_chunk_backward_intra(bool, kda::DecayForm, const DeviceProblem&,
                                          const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda

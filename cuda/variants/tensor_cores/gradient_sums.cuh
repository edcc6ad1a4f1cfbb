// Backwards on tensor cores, whatever operands are: of what stays within a chunk (B4 of docs/kda.md, "Chunk
// backward") the sums by pairs, and what becomes of all of them; then the sums of dG (B5).
#pragma once

#include "cuda/variants/tensor_cores/backward.cuh"
#include "cuda/variants/tensor_cores/inputs.cuh"

namespace kda_check::cuda {

#ifdef KDA_CHECK_SM90

/// Scores: the chunk, with place(), pair(), G(), gates(), key(), query(), exponential_of() and diagonal().
template <class Scores, bool by_pairs>
class GradientSums : public Scores {
 public:
  using Scores::Scores, Scores::width;

 protected:
  using Scores::blocks_, Scores::chunk_, Scores::lane_, Scores::p_, Scores::s_, Scores::thread_,
      Scores::work_;
  using Scores::exponential_of, Scores::G, Scores::key, Scores::pair, Scores::place, Scores::query;

  /// Row of the anchor of a diagonal block.
  __device__ int diagonal_anchor(int block) const {
    const int top = 16 * block;
    return work_.decay == DecayForm::anchor_mid ? top + min(8, chunk_.rows - top - 1) : top;
  }
  /// sum += x exp(..) of two rows of a product of 16 rows and eight channels; exponent(row, channel).
  template <class Exponent>
  __device__ void add_scaled(float (&sum)[4], const float (&x)[4], int block, int channel,
                             Exponent exponent) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 to_anchor = exponent(16 * block + lane_ / 4 + 8 * half, channel + 2 * (lane_ % 4));
      sum[2 * half] = sum[2 * half] + x[2 * half] * exponential_of(to_anchor.x);
      sum[2 * half + 1] = sum[2 * half + 1] + x[2 * half + 1] * exponential_of(to_anchor.y);
    }
  }
  __device__ void store_sums(float* to, int block, int channel, const float (&x)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      pair(to, 16 * block + lane_ / 4 + 8 * half, channel + 2 * (lane_ % 4)) = {x[2 * half], x[2 * half + 1]};
  }

  /// dqi, row and column, with what the pairs of diagonal blocks add, and what comes of them: to dbeta, dq,
  /// dk and dG. A thread has a channel of a block.
  __device__ void finish_blocks() const {
    const int k = thread_ % width, block = thread_ / width, top = 16 * block;
    if (block < blocks_) {
      const int count = min(16, chunk_.rows - top);
      float keys[16], of_beta[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) keys[i] = key(top + i, k);
      if constexpr (by_pairs) add_pairs(block, k, count, keys);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        of_beta[i] = 0.0f;
        if (i >= count) continue;
        const int at = place(top + i, k);
        const float dq = s_.sums[0][at], row = s_.sums[1][at], column = s_.sums[2][at],
                    by_row = s_.beta[top + i] * row;
        of_beta[i] = fmaf(row, keys[i], 0.0f);
        s_.sums[1][at] = by_row + column;
        s_.sums[2][at] = fmaf(query(top + i, k), dq, keys[i] * (by_row - column));
      }
      // Lanes whose number has a bit keep the upper half of the rows that are left, the others the lower.
#pragma unroll
      for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int kept = 8 >> step;
          if (n >= kept) break;
          const bool is_upper = lane_ & 2 * kept;
          const float own = is_upper ? of_beta[n + kept] : of_beta[n],
                      given = is_upper ? of_beta[n] : of_beta[n + kept];
          of_beta[n] = own + __shfl_xor_sync(whole_warp, given, 2 * kept);
        }
      const float sum = of_beta[0] + __shfl_xor_sync(whole_warp, of_beta[0], 1);
      if (lane_ % 2 == 0) s_.of_keys[top + lane_ / 2][k / warp_lanes] = sum;
    }
    __syncthreads();
    if (thread_ >= chunk_.rows) return;
    constexpr int groups = width / warp_lanes;
    const auto& x = s_.of_keys[thread_];
    const float of_keys = groups == 4 ? (x[0] + x[2 % groups]) + (x[1] + x[3 % groups]) : x[0] + x[1];
    work_.dbeta[work_.row(chunk_.token + thread_, chunk_.local)] = s_.of_errors[thread_] + of_keys;
  }

  /// Channels k and k + 1 of a row of [tokens][heads][K], which begins at `row`.
  __device__ void store(float* row, int k, float first, float second) const {
    if (p_.K % 2 == 0) {
      if (k < p_.K) *reinterpret_cast<float2*>(row + k) = {first, second};
    } else {
      if (k < p_.K) row[k] = first;
      if (k + 1 < p_.K) row[k + 1] = second;
    }
  }

  /// dg, the sums of dG from the last row upwards, a thread a channel.
  __device__ void sum_gates() const {
    constexpr int together = 16;
    const int k = thread_ % width, last = chunk_.rows - 1;
    if (thread_ < width) {
      float sum = 0.0f;
#pragma unroll 1
      for (int first = image_rows - together; first >= 0; first -= together) {
        float dG[together];
#pragma unroll
        for (int i = 0; i < together; ++i) dG[i] = s_.sums[2][place(first + i, k)];
#pragma unroll
        for (int i = together - 1; i >= 0; --i) {
          const int row = first + i;
          if (row > last) continue;
          sum = row == last ? dG[i] : sum + dG[i];
          s_.sums[2][place(row, k)] = sum;
        }
      }
    }
    __syncthreads();
    if (k >= p_.K) return;
    const MutableTensor& to = p_.gradients[static_cast<int>(kda::Gradient::dg)];
#pragma unroll 4
    for (int row = thread_ / width; row <= last; row += gradient_threads / width) {
      const float sum = s_.sums[2][place(row, k)];
      if (work_.dg != nullptr)
        work_.dg[work_.row(chunk_.token + row, chunk_.local) * p_.K + k] = sum;
      else
        cuda::store(sum, to.data, to.dtype, p_.at(chunk_.token + row, p_.HV, chunk_.head) * p_.K + k);
    }
  }

 private:
  /// One exponential for each row i and column j < i of a diagonal block; every sum from its first term on,
  /// then added to what is there.
  __device__ void add_pairs(int block, int k, int count, const float (&keys)[16]) const {
    const int top = 16 * block;
    const auto [dAqk, dAkk] = this->diagonal(block);
    float gates[16], by_query[16]{}, by_key[16]{};
#pragma unroll
    for (int i = 0; i < 16; ++i) gates[i] = G(top + i, k);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i >= count) break;
      const float q = query(top + i, k), beta_key = keys[i] * s_.beta[top + i];
      float dq = 0.0f, row = 0.0f;
#pragma unroll
      for (int first = 0; first <= i; first += 4) {
        const float4 of_q = *reinterpret_cast<const float4*>(dAqk + i * block_row + first),
                     of_k = *reinterpret_cast<const float4*>(dAkk + i * block_row + first);
        const float q_scores[] = {of_q.x, of_q.y, of_q.z, of_q.w},
                    k_scores[] = {of_k.x, of_k.y, of_k.z, of_k.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int j = first + e;
          if (j > i) break;
          const float decay = j == i ? 1.0f : exponential_of(gates[i] - gates[j]), left = keys[j] * decay;
          dq = fmaf(q_scores[e], left, dq);
          by_query[j] = fmaf(q_scores[e], q * decay, by_query[j]);
          if (j == i) break;
          row = fmaf(k_scores[e], left, row);
          by_key[j] = fmaf(k_scores[e], beta_key * decay, by_key[j]);
        }
      }
      const int at = place(top + i, k);
      s_.sums[0][at] = s_.sums[0][at] + dq;
      s_.sums[1][at] = s_.sums[1][at] + row;
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int at = place(top + j, k);
      s_.sums[2][at] = s_.sums[2][at] + by_query[j] + by_key[j];
    }
  }
};

#endif

}  // namespace kda_check::cuda

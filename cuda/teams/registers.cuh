// The recurrence with the columns of a state in registers, a thread for each, where K is
// known and the sums run in an order whose partial sums find room beside them. The operations are those of
// kda/kernels/token/token.hpp, and each of them in the same order.
#pragma once

#include "cuda/arithmetic/strip.cuh"
#include "cuda/teams/work.cuh"

namespace kda_check::cuda {

// Sums of K terms that come one after the other. `channel(i)`: which is number i. Every number is known where
// it is compiled.

template <int K, bool is_fused>
struct RunningSum {
  float sum = 0;

  static __host__ __device__ constexpr int channel(int i) { return i; }
  __device__ __forceinline__ void add(int, float a, float b) { sum = multiply_add<is_fused>(a, b, sum); }
  __device__ __forceinline__ float total() const { return sum; }
};

/// Sums of neighbours, then of pairs of these: a binary counter. Each of the first is one of `run` terms.
template <int K, bool is_fused, int run>
struct SumOfHalves {
  static constexpr int level_count = K / run == 64 ? 6 : K / run == 32 ? 5 : 0;
  static_assert(K / run == 1 << level_count);
  float levels[level_count + 1];  ///< [l]: the sum of 2^l runs
  float of_run = 0;

  __device__ __forceinline__ void add(int i, float a, float b) {
    of_run = i % run == 0 ? a * b : multiply_add<is_fused>(a, b, of_run);
    if (i % run != run - 1) return;
    float sum = of_run;
    bool is_kept = false;
#pragma unroll
    for (int level = 0; level <= level_count; ++level) {
      if (is_kept) continue;
      is_kept = (i / run >> level & 1) == 0;
      if (is_kept)
        levels[level] = sum;
      else
        sum = levels[level] + sum;
    }
  }
  __device__ __forceinline__ float total() const { return levels[level_count]; }
};

template <int K, bool is_fused>
struct PairwiseSum : SumOfHalves<K, is_fused, 2> {
  static __host__ __device__ constexpr int channel(int i) { return i; }
};

/// tree:32: lane l of a warp takes the channels l, l + 32, ...; then the upper half of the lanes is added to
/// the lower: neighbours, if lanes come in the order of their digits turned round.
template <int K, bool is_fused>
struct WarpSum : SumOfHalves<K, is_fused, K / warp_lanes> {
  static __host__ __device__ constexpr int channel(int i) {
    constexpr int run = K / warp_lanes;
    int lane = 0;
    for (int digit = 0; digit < 5; ++digit) lane |= (i / run >> digit & 1) << (4 - digit);
    return lane + i % run * warp_lanes;
  }
};

/// Rows of some tokens in shared memory, in the order of a sum: a token's decays and key, and the query of
/// the token before it.
template <int K, class Sum>
struct TokenRows {
  static constexpr int tokens = 8;
  alignas(16) float decay[tokens][K], key[tokens][K], query[tokens][K];

  /// `count` tokens from `begin` on, which then are on their way.
  __device__ void fetch(const float* decays, const float* keys, const float* queries, int begin, int count) {
    for (int e = threadIdx.x; e < count * K; e += token_threads) {
      const int token = e / K, i = e % K, k = Sum::channel(i);
      const std::size_t at = std::size_t(begin + token) * K + k,
                        before = std::size_t(max(begin + token - 1, 0)) * K + k;
      copy_later(&decay[token][i], decays + at);
      copy_later(&key[token][i], keys + at);
      copy_later(&query[token][i], queries + before);
    }
    __pipeline_commit();
  }
};

/// Four neighbours at once.
__device__ __forceinline__ Four<float> four(const float* x) {
  return *reinterpret_cast<const Four<float>*>(x);
}

template <int K, bool is_fused, class Sum>
__global__ void __launch_bounds__(token_threads)
    register_tokens_kernel(const __grid_constant__ DeviceProblem p,
                           const __grid_constant__ TeamWork<float> work) {
  __shared__ TokenRows<K, Sum> rows[2];
  const int tiles = (p.V + token_threads - 1) / token_threads, local = blockIdx.y,
            sequence = blockIdx.x / tiles,
            column = blockIdx.x % tiles * token_threads + static_cast<int>(threadIdx.x);
  const bool is_column = column < p.V;
  const TokenRange range = work.sequences[sequence];
  const int tokens = static_cast<int>(range.count);
  const std::size_t first = work.token_of(local, range.first), stride = work.value_stride;
  const float *const decays = work.g + first * K, *const keys = work.k + first * K,
                     *const queries = work.q + first * K, *const beta = work.beta + first,
                     *const v = work.v + first * stride + (is_column ? column : 0);
  float *const o = work.o + first * stride + column, *const stored =
                                                         work.state +
                                                         work.state_of(local, sequence) * K * stride + column;
  float state[K];
#pragma unroll
  for (int i = 0; i < K; ++i) state[i] = is_column ? stored[Sum::channel(i) * stride] : 0;

  constexpr int together = TokenRows<K, Sum>::tokens;
  const auto count_from = [tokens](int begin) { return min(together, tokens - begin); };
  if (tokens > 0) rows[0].fetch(decays, keys, queries, 0, count_from(0));
  for (int begin = 0; begin < tokens; begin += together) {
    const int next = begin + together, count = count_from(begin);
    if (next < tokens)
      rows[next / together % 2].fetch(decays, keys, queries, next, count_from(next));
    else
      __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const TokenRows<K, Sum>& here = rows[begin / together % 2];
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int t = begin + i;
      const float value = v[t * stride], strength = beta[t];
      Sum output, prediction;
#pragma unroll
      for (int k = 0; k < K; k += 4) {
        const Four<float> decay = four(&here.decay[i][k]), key = four(&here.key[i][k]),
                          query = four(&here.query[i][k]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& row = state[k + j];
          output.add(k + j, query.x[j], row);  // of the token before
          row = row * decay.x[j];              // P_t = diag(e^g_t) S_t-1
          prediction.add(k + j, key.x[j], row);
        }
      }
      if (is_column && t > 0) o[(t - 1) * stride] = output.total();
      const float w = (value - prediction.total()) * strength;
#pragma unroll
      for (int k = 0; k < K; k += 4) {
        const Four<float> key = four(&here.key[i][k]);
#pragma unroll
        for (int j = 0; j < 4; ++j) state[k + j] = multiply_add<is_fused>(key.x[j], w, state[k + j]);
      }
    }
    __syncthreads();  // all are done with what the next but one overwrites
  }
  if (!is_column) return;
  if (tokens > 0) {
    const float* const query = queries + std::size_t(tokens - 1) * K;
    Sum output;
#pragma unroll
    for (int i = 0; i < K; ++i) output.add(i, query[Sum::channel(i)], state[i]);
    o[std::size_t(tokens - 1) * stride] = output.total();
  }
#pragma unroll
  for (int i = 0; i < K; ++i) stored[Sum::channel(i) * stride] = state[i];
}

using TokensKernel = void (*)(DeviceProblem, TeamWork<float>);

/// Null where there is none: another width, another order of sums, or a state that is rounded on the way.
template <int K, bool is_fused>
TokensKernel register_tokens_in(const kda::Reduction& reduction) {
  switch (reduction.kind) {
    case kda::ReductionKind::sequential:
      return register_tokens_kernel<K, is_fused, RunningSum<K, is_fused>>;
    case kda::ReductionKind::pairwise:
      return register_tokens_kernel<K, is_fused, PairwiseSum<K, is_fused>>;
    case kda::ReductionKind::tree:
      return reduction.width == warp_lanes ? register_tokens_kernel<K, is_fused, WarpSum<K, is_fused>>
                                           : nullptr;
    default:
      return nullptr;
  }
}
inline TokensKernel register_tokens(const DeviceProblem& p, const TeamWork<float>& work) {
  if (p.casts.prediction != kda::Rounding::none || p.casts.carry != kda::Rounding::none) return nullptr;
  const auto in = [&](auto of_fused, auto of_separate) {
    return work.operations.is_fused ? of_fused(work.operations.reduction)
                                    : of_separate(work.operations.reduction);
  };
  if (p.K == 64) return in(register_tokens_in<64, true>, register_tokens_in<64, false>);
  if (p.K == 128) return in(register_tokens_in<128, true>, register_tokens_in<128, false>);
  return nullptr;
}

}  // namespace kda_check::cuda

// What a block of the oracle's recurrence begins with: where it is, and the inputs of tokens in its shared
// memory, each copied there while the token before the one before is at work.
#pragma once

#include "cuda/device/check.hpp"
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/truth/chain.cuh"
#include "cuda/truth/problem.cuh"
#include "kda/kernels/truth/oracle_step.hpp"

namespace kda_check::cuda {

constexpr int oracle_rows = 16;  ///< of the state that a warp has
constexpr int oracle_slots = 3;  ///< tokens whose inputs are there: this one, the next, one on its way

/// The columns of the state of one head of one sequence.
struct OraclePlace {
  const OraclePortion& p;
  int head, first_column;
  TokenRange range;

  __device__ explicit OraclePlace(const OraclePortion& portion)
      : p(portion),
        head(static_cast<int>(blockIdx.y)),
        first_column(static_cast<int>(blockIdx.x) * warp_lanes),
        range(portion.ranges[blockIdx.z]) {}
  __device__ int tokens() const { return static_cast<int>(range.count); }
  /// Of [tokens][heads].
  __device__ std::size_t token(int t) const { return (std::size_t(range.first) + t) * p.heads + head; }
  __device__ std::size_t state(int k, int v) const {
    return ((std::size_t(blockIdx.z) * p.heads + head) * p.K + k) * p.V + v;
  }
};

inline __host__ __device__ int oracle_warps(int K) { return (K + oracle_rows - 1) / oracle_rows; }

/// The rows of a warp; those beyond K are zeros.
class OracleRows {
 public:
  /// In doubles, of all warps.
  static __host__ __device__ int size(int K) { return oracle_slots * oracle_warps(K) * oracle_rows * 8; }

  __device__ OracleRows(double* memory, int warp)
      : rows_(reinterpret_cast<ChannelPairs*>(memory) + warp * oracle_slots * oracle_rows),
        first_(warp * oracle_rows) {}
  __device__ const ChannelPairs* at(int t) const { return rows_ + t % oracle_slots * oracle_rows; }
  /// By all lanes.
  template <class Place>
  __device__ void fetch(const Place& place, int t) {
    if (t >= place.tokens()) return;
    const int lane = static_cast<int>(threadIdx.x) % warp_lanes, there = place.p.K - first_;
    const char* const from =
        reinterpret_cast<const char*>(place.p.channels + place.token(t) * place.p.K + first_);
    char* const to = reinterpret_cast<char*>(rows_ + t % oracle_slots * oracle_rows);
    const int bytes = (there < oracle_rows ? there : oracle_rows) * static_cast<int>(sizeof(ChannelPairs));
#pragma unroll
    for (int i = 0; i < oracle_rows * static_cast<int>(sizeof(ChannelPairs)) / 16; i += warp_lanes)
      if ((i + lane) * 16 < bytes) copy_to_shared<16>(to + (i + lane) * 16, from + (i + lane) * 16);
  }

 private:
  ChannelPairs* rows_;
  int first_;
};

/// Values, a column for each lane, those beyond V zeros, beta, and the norms of the token.
class OracleValues {
 public:
  static __host__ __device__ int size() { return oracle_slots * slot_size; }

  __device__ explicit OracleValues(double* memory) : memory_(memory) {}
  __device__ double value(int t, int column) const { return slot(t)[before_values + column]; }
  __device__ double beta_hi(int t) const { return slot(t)[0]; }
  __device__ double beta_lo(int t) const { return slot(t)[1]; }
  __device__ kda::TokenNorms norms(int t) const { return {slot(t)[2], slot(t)[3], slot(t)[4]}; }
  /// By all lanes of one warp.
  __device__ void fetch(const OraclePlace& place, int t) {
    if (t >= place.tokens()) return;
    const int lane = static_cast<int>(threadIdx.x) % warp_lanes, column = place.first_column + lane;
    if (column < place.p.V)
      copy_to_shared<8>(slot(t) + before_values + lane, place.p.values + place.token(t) * place.p.V + column);
    if (lane == 0) copy_to_shared<16>(slot(t), place.p.strengths + 2 * place.token(t));
    if (lane < 3 && place.p.token_norms != nullptr)
      copy_to_shared<8>(slot(t) + 2 + lane, &place.p.token_norms[place.token(t)].decay + lane);
  }

 private:
  static constexpr int before_values = 6, slot_size = before_values + warp_lanes;
  __device__ double* slot(int t) const { return memory_ + t % oracle_slots * slot_size; }
  double* memory_;
};

/// What a token writes to a column, for all rows.
template <class Step>
struct OracleWrite {
  typename Step::Number write;
  double magnitude;

  /// From the prediction. `sum` is as it was added up.
  static __device__ OracleWrite of(double value, const typename Step::Number& sum, double magnitude,
                                   const typename Step::Number& beta) {
    // e_t = v_t - P_t^T k_t
    return {Step::scaled(Step::difference(value, Step::normalised(sum)), beta),
            numeric::absolute(value) + magnitude};
  }
  /// Three numbers, each behind those of the other lanes.
  static __device__ OracleWrite load(const double* from) {
    return {Step::of(from[0], from[warp_lanes]), from[2 * warp_lanes]};
  }
  __device__ void store(double* to) const {
    const numeric::DoubleDouble x = Step::pair(write);
    to[0] = x.hi, to[warp_lanes] = x.lo, to[2 * warp_lanes] = magnitude;
  }
};

template <class Step>
__device__ void store_output(const OraclePlace& place, int t, int column, const typename Step::Number& sum,
                             double magnitude) {
  if (column >= place.p.V) return;
  const std::size_t at = place.token(t) * place.p.V + column;
  const numeric::DoubleDouble o = Step::pair(Step::normalised(sum));
  place.p.o.hi[at] = o.hi;
  place.p.o.lo[at] = o.lo;
  place.p.o.magnitude[at] = magnitude;
}

/// Element (k, v) of the state of a place, or zeros beyond it.
template <class Step>
__device__ typename Step::Number load_state(const OraclePlace& place, int k, int v, double& magnitude) {
  const bool there = k < place.p.K && v < place.p.V;
  const std::size_t at = there ? place.state(k, v) : 0;
  magnitude = there ? place.p.state.magnitude[at] : 0.0;
  return Step::of(there ? place.p.state.hi[at] : 0.0, there ? place.p.state.lo[at] : 0.0);
}
template <class Step>
__device__ void store_state(const OraclePlace& place, int k, int v, const typename Step::Number& state,
                            double magnitude) {
  if (k >= place.p.K || v >= place.p.V) return;
  const numeric::DoubleDouble s = Step::pair(state);
  const std::size_t at = place.state(k, v);
  place.p.state.hi[at] = s.hi;
  place.p.state.lo[at] = s.lo;
  place.p.state.magnitude[at] = magnitude;
}

}  // namespace kda_check::cuda

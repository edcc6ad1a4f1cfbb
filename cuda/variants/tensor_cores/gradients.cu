// The gradients of a chunk of a head on tensor cores (B3 to B5 of docs/kda.md, "Chunk backward"): a block a
// chunk, all of it in shared memory. V comes in tiles, twice; in between is what needs no state.
#include <cstddef>

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/gradient_blocks.cuh"

namespace kda_check::cuda {

namespace {

#ifdef KDA_CHECK_SM90

template <DType dtype, int width, bool by_pairs>
class Gradients : public GradientBlocks<dtype, width, by_pairs> {
 public:
  using Blocks = GradientBlocks<dtype, width, by_pairs>;
  using Blocks::Blocks;
  using typename Blocks::Image, typename Blocks::Words;

  __device__ void all() {
    this->begin();
    this->scores();
    this->announce_states();
    this->through_inverse();
    this->begin_states(0);
    this->tell_scores();
    this->block_sums();
    this->finish_blocks();
    through_states();
    this->sum_gates();
  }

 private:
  using Blocks::blocks_, Blocks::chunk_, Blocks::lane_, Blocks::p_, Blocks::s_, Blocks::thread_,
      Blocks::tiles_, Blocks::warp_, Blocks::work_;
  using Blocks::gates;
  using Shared = GradientShared<width>;
  static constexpr int groups = width / 16;
  /// A warp has sixteen channels of every other eight rows: two products of 16 rows, two of eight channels.
  using Products = float[2][2][4];
  static constexpr int multiplying_warps = 2 * groups;
  /// Of these, rows 8 `side()` and on of every 16.
  __device__ int side() const { return warp_ / groups; }
  __device__ int first_channel() const { return warp_ % groups * 16; }

  /// Where a lane's matrices are in a tile, in bytes from its arrays.
  struct Places {
    std::uint32_t states[2], rows, values[2];
  };
  __device__ Places places() const {
    const int matrix = lane_ / 8, in_matrix = lane_ % 8;
    Places at;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      at.states[n] = 2 * Image::template at<width>(lane_, first_channel() + 8 * n);
      at.values[n] = 2 * Image::template at<image_rows>(matrix / 2 * 8 + in_matrix,
                                                        32 * n + 8 * side() + matrix % 2 * 16);
    }
    at.rows = (8 * side() + matrix % 2 * 16 + in_matrix) * value_tile_row + matrix / 2 * 16;
    return at;
  }

  /// Through V again: do h^T, v_new dh^T and dp h^T, and beside them the rows of h dh, summed.
  __device__ void through_states() const {
    Products dq{}, dk{}, through_errors{};
    const Places places = this->places();
    float of_states = 0.0f;
    const int k = thread_ % width, part = thread_ / width;
    const int element[] = {Image::template at<width>(2 * (part % 4), k),
                           Image::template at<width>(2 * (part % 4) + 1, k)};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      this->wait_for_states(tile);
      if (tile + 1 < tiles_) this->begin_states(tile + 1);
      const StateTile<width>& at = this->state_tile(tile);
      const int steps = this->steps(tile);
      if (warp_ < multiplying_warps) multiply(shared_address(&at), places, steps, dq, dk, through_errors);
      if (part < 4) {
#pragma unroll
        for (int v = 0; v < value_tile; v += 8) {
          if (v >= 16 * steps) break;
#pragma unroll
          for (int next = 0; next < 2; ++next)
            of_states = fmaf(Words::first(at.h[element[next] + v * width]),
                             Words::first(at.dh[element[next] + v * width]), of_states);
        }
      }
    }
    if (part < 4) s_.of_states[part][k] = of_states;
    float of_keys[2][2]{};
    if (warp_ < multiplying_warps) end_keys(dk, of_keys);
    __syncthreads();
    if (warp_ < multiplying_warps) hand_out(dq, dk, through_errors, of_keys);
    __syncthreads();
  }

  __device__ void multiply(std::uint32_t tile, const Places& places, int steps, Products& dq, Products& dk,
                           Products& through_errors) const {
    using Tile = StateTile<width>;
    std::uint32_t h[2][4], dh[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_transposed(h[n], tile + static_cast<std::uint32_t>(offsetof(Tile, h)) + places.states[n]);
      load_transposed(dh[n], tile + static_cast<std::uint32_t>(offsetof(Tile, dh)) + places.states[n]);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (32 * m >= chunk_.rows) break;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        if (step >= steps) break;
        const auto multiply = [&](Products& sum, const std::uint32_t(&a)[4], const std::uint32_t(&b)[2][4]) {
#pragma unroll
          for (int n = 0; n < 2; ++n) multiply_16<dtype>(sum[m][n], a, b[n][2 * step], b[n][2 * step + 1]);
        };
        const std::uint32_t rows = tile + places.rows + m * 32 * value_tile_row + step * 32,
                            values = tile + places.values[m] + step * 16 * image_rows * 2;
        std::uint32_t a[4];
        load_matrices(a, rows + static_cast<std::uint32_t>(offsetof(Tile, d_o)));
        multiply(dq, a, h);
        load_transposed(a, values + static_cast<std::uint32_t>(offsetof(Tile, v_new)));
        multiply(dk, a, dh);
        load_transposed(a, values + static_cast<std::uint32_t>(offsetof(Tile, dp)));
        multiply(through_errors, a, h);
      }
    }
  }

  /// dk, scaled; what the rows of a lane give to the sum of k_i dk_i, which those of the other side that do
  /// not have the last row leave for those that have.
  __device__ void end_keys(Products& dk, float (&of_keys)[2][2]) const {
    each_pair([&](int m, int n, int half, const Pairs& at) {
      const float2 own = at.gates(), end = gates(chunk_.rows - 1, at.k), key = at.key();
      float &x = dk[m][n][2 * half], &y = dk[m][n][2 * half + 1];
      x = x * ex2_ftz(end.x - own.x), y = y * ex2_ftz(end.y - own.y);
      of_keys[n][0] = fmaf(key.x, x, of_keys[n][0]), of_keys[n][1] = fmaf(key.y, y, of_keys[n][1]);
    });
    if (has_last_row()) return;
#pragma unroll
    for (int n = 0; n < 2; ++n)
      *reinterpret_cast<float2*>(&s_.of_rows[lane_ / 4][first_channel() + 8 * n + 2 * (lane_ % 4)]) = {
          of_keys[n][0], of_keys[n][1]};
  }
  __device__ bool has_last_row() const { return (chunk_.rows - 1) / 8 % 2 == side(); }

  /// What the last row of dG takes of channel k, from what a lane has of sum_i k_i dk_i.
  __device__ float of_last_row(int k, float of_keys) const {
    float sum = of_keys + s_.of_rows[lane_ / 4][k];
#pragma unroll
    for (int side = 4; side > 0; side /= 2) sum = sum + __shfl_xor_sync(whole_warp, sum, 4 * side);
    const auto& x = s_.of_states;
    return fmaf(ex2_ftz(this->G(chunk_.rows - 1, k)), (x[0][k] + x[2][k]) + (x[1][k] + x[3][k]), sum);
  }

  /// dq and dk; dG in the place of what stayed within the chunk.
  __device__ void hand_out(const Products& dq, const Products& dk, const Products& through_errors,
                           const float (&of_keys)[2][2]) const {
    const float scale = static_cast<float>(p_.scale);
    float last[2][2]{};
    if (has_last_row()) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          last[n][e] = of_last_row(first_channel() + 8 * n + 2 * (lane_ % 4) + e, of_keys[n][e]);
    }
    each_pair([&](int m, int n, int half, const Pairs& at) {
      const float2 own = at.gates(), decay{ex2_ftz(own.x), ex2_ftz(own.y)}, query = at.query(),
                   key = at.key(), dq_within = at.sum(0), dk_within = at.sum(1);
      float2& dG = at.sum(2);
      const auto element = [&](int e, float decayed, float q_i, float k_i, float q_within, float k_within,
                               float& gate) {
        const float of_query = scale * (dq[m][n][2 * half + e] * decayed), of_key = dk[m][n][2 * half + e],
                    through = (0.0f - through_errors[m][n][2 * half + e]) * decayed;
        float x = fmaf(k_i, through, fmaf(q_i, of_query, -(k_i * of_key)));
        if (at.row == chunk_.rows - 1) x = x + last[n][e];
        gate = x + gate;
        return float2{of_query + q_within, (of_key + through) + k_within};
      };
      const float2 first = element(0, decay.x, query.x, key.x, dq_within.x, dk_within.x, dG.x),
                   second = element(1, decay.y, query.y, key.y, dq_within.y, dk_within.y, dG.y);
      const std::size_t to = work_.row(chunk_.token + at.row, chunk_.local) * static_cast<unsigned>(p_.K);
      this->store(work_.dq + to, at.k, first.x, second.x);
      this->store(work_.dk + to, at.k, first.y, second.y);
    });
  }
  /// Two neighbouring channels of a row, whose last three bits are those of a lane.
  struct Pairs {
    GradientShared<width>& s;
    int row, k, key_at, gate_at;

    __device__ float2& sum(int number) const { return *reinterpret_cast<float2*>(s.sums[number] + gate_at); }
    __device__ float2 gates() const { return *reinterpret_cast<const float2*>(s.G + gate_at); }
    __device__ float2 key() const { return scaled(s.k, s.k_norm[row]); }
    __device__ float2 query() const { return scaled(s.q, s.q_norm[row]); }

   private:
    __device__ float2 scaled(const std::uint16_t* rows, float norm) const {
      const std::uint32_t two = *reinterpret_cast<const std::uint32_t*>(rows + key_at);
      return {Words::first(two) * norm, Words::second(two) * norm};
    }
  };
  /// each(rows, channels and half of a product, pair) of the pairs of channels that this lane has.
  template <class Each>
  __device__ void each_pair(Each each) const {
    const int low = lane_ / 4, top = 8 * side();
    int k[2], key_at[2], gate_at[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      k[n] = first_channel() + 8 * n + 2 * (lane_ % 4);
      key_at[n] = Image::template at<width>(low, k[n]) + top * width;
      gate_at[n] = Shared::at(low, k[n]) + top * width;
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int below = 32 * m + 16 * half, row = below + top + low;
        if (row >= chunk_.rows) continue;
#pragma unroll
        for (int n = 0; n < 2; ++n)
          each(m, n, half, Pairs{s_, row, k[n], key_at[n] + below * width, gate_at[n] + below * width});
      }
  }
};

#endif

template <DType dtype, int width, bool by_pairs>
__global__ void __launch_bounds__(gradient_threads, 1)
    chunk_gradients(const __grid_constant__ DeviceProblem p,
                    const __grid_constant__ TensorCoreBackwardWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  Gradients<dtype, width, by_pairs>(p, work, *reinterpret_cast<GradientShared<width>*>(memory)).all();
#endif
}

}  // namespace

void launch_tensor_core_gradients(const DeviceProblem& p, const TensorCoreBackwardWork& work) {
  for_operands<narrow_tensor_core_key>(p.q.dtype, p.K, [&](auto dtype, auto width) {
    launch("gpu-chunk backwards on tensor cores, chunks",
           work.decay == DecayForm::anchor_pair ? chunk_gradients<dtype, width, true>
                                                : chunk_gradients<dtype, width, false>,
           dim3(static_cast<unsigned>(work.chunk_count) * static_cast<unsigned>(work.heads)),
           gradient_threads, sizeof(GradientShared<width>), p, work);
  });
}

}  // namespace kda_check::cuda

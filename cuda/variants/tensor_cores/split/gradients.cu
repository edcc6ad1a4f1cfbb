// The gradients of a chunk of a head in fp32 on tensor cores (B3 to B5 of docs/kda.md, "Chunk backward"): a
// block a chunk. First what needs no state: scores, the inverse, what stays within the chunk; then what goes
// through the states.
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/split/gradient_blocks.cuh"

namespace kda_check::cuda {

namespace {

#ifdef KDA_CHECK_SM90

template <int width, bool by_pairs, bool tells>
class SplitGradients : public SplitGradientBlocks<width, by_pairs, tells> {
 public:
  using Blocks = SplitGradientBlocks<width, by_pairs, tells>;
  using Blocks::Blocks;

  __device__ void all() const {
    this->begin();
    this->scores();
    this->through_inverse();
    this->block_sums();
    this->finish_blocks();
    through_states();
    this->sum_gates();
  }

 private:
  using Blocks::blocks_, Blocks::chunk_, Blocks::columns_, Blocks::lane_, Blocks::p_, Blocks::s_,
      Blocks::thread_, Blocks::warp_, Blocks::work_;
  using Blocks::exponential_of;
  static constexpr int groups = width / 16, multiplying_warps = 2 * groups;
  /// A warp has sixteen channels of every other eight rows: two products of 16 rows, two of eight channels.
  using Sums = SplitSums<2>[2];
  using Products = float[2][2][4];
  /// Of these, rows 8 `side()` and on of every 16.
  __device__ int side() const { return warp_ / groups; }
  __device__ int group() const { return warp_ % groups; }
  __device__ bool multiplies() const { return warp_ < multiplying_warps; }
  __device__ int row(int m, int half) const { return 32 * m + 16 * half + 8 * side() + lane_ / 4; }

  /// do h^T, - dp h^T and v_new dh^T, and beside them the rows of h dh, summed; then dq, dk and dG.
  __device__ void through_states() const {
    __syncthreads();  // scores are done
    Products dq, dk, through_errors;
    {
      Sums of_output, of_errors;
      over_values(work_.d_o, work_.r, work_.split.h,
                  [&](const SplitRightFactor& b, const float4(&)[2], int, const std::uint32_t* rows) {
                    multiply(rows, b, of_output);
                    multiply(rows + blocks_of_chunk * split_block_words, b, of_errors);
                  });
      finish(of_output, dq), finish(of_errors, through_errors);
    }
    {
      Sums of_writes;
      float of_states[2]{};
      const bool adds = side() == 0;
      const float* const h = this->states(work_.split.h, group());
      over_values(work_.split.v_new, nullptr, work_.dh,
                  [&](const SplitRightFactor& b, const float4(&dh)[2], int c, const std::uint32_t* rows) {
                    if (adds)
#pragma unroll
                      for (int half = 0; half < 2; ++half) {
                        const float4 x = load_half(h + c * numbers_of_block, half, lane_);
                        float& sum = of_states[half];
                        sum = fmaf(x.x, dh[half].x, sum), sum = fmaf(x.y, dh[half].y, sum);
                        sum = fmaf(x.z, dh[half].z, sum), sum = fmaf(x.w, dh[half].w, sum);
                      }
                    multiply(rows, b, of_writes);
                  });
      finish(of_writes, dk);
      if (multiplies() && adds)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = of_states[half];
          sum = sum + __shfl_xor_sync(whole_warp, sum, 2);
          sum = sum + __shfl_xor_sync(whole_warp, sum, 1);
          if (lane_ % 4 == 0) s_.states.of_states[16 * group() + 8 * half + lane_ / 4] = sum;
        }
    }
    float of_keys[4]{};
    if (multiplies()) end_keys(dk, of_keys);
    __syncthreads();
    if (multiplies()) hand_out(dq, dk, through_errors, of_keys);
    __syncthreads();
  }

  /// use(columns of the state as right factor, as numbers, block of V, rows of values) for 16 columns of V
  /// after the other. Rows: of `first`, and of - beta `second`, if there is one.
  template <class Use>
  __device__ void over_values(const float* first, const float* second, const float* state, Use use) const {
    const int number = warp_ / 2, half = warp_ % 2, block = number % blocks_of_chunk;
    const bool is_second = number >= blocks_of_chunk, brings = !is_second || second != nullptr;
    const float* const rows = brings ? this->values(is_second ? second : first, block) : nullptr;
    const float* const columns = this->states(state, group());
    const float factor = is_second ? -s_.beta[16 * block + 8 * half + lane_ / 4] : 1.0f;
    const auto fetch = [&](int c) {
      return brings && c < columns_ ? load_half(rows + c * numbers_of_block, half, lane_) : float4{};
    };
    const auto store = [&](int c, const float4& x) {
      if (!brings || c >= columns_) return;
      std::uint32_t* const to = s_.states.rows[c % 2] + number * split_block_words;
      store_split(to, 2 * half, lane_, {x.x * factor, x.y * factor});
      store_split(to, 2 * half + 1, lane_, {x.z * factor, x.w * factor});
    };
    const auto fetch_columns = [&](int c, float4(&x)[2]) {
      if (!multiplies() || c >= columns_) return;
#pragma unroll
      for (int half = 0; half < 2; ++half) x[half] = load_half(columns + c * numbers_of_block, half, lane_);
    };
    float4 next_columns[2]{};
    fetch_columns(0, next_columns);
    store(0, fetch(0));
    __syncthreads();
#pragma unroll 1
    for (int c = 0; c < columns_; ++c) {
      const float4 next = fetch(c + 1), now[2] = {next_columns[0], next_columns[1]};
      fetch_columns(c + 1, next_columns);
      if (multiplies()) {
        SplitRightFactor b;
        as_right(now[0], b[0]), as_right(now[1], b[1]);
        use(b, now, c, s_.states.rows[c % 2]);
      }
      store(c + 1, next);
      __syncthreads();
    }
  }
  /// sums += rows of four blocks times b
  __device__ void multiply(const std::uint32_t* rows, const SplitRightFactor& b, Sums& sums) const {
    const int matrix = lane_ / 8;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (32 * m >= chunk_.rows) break;
      SplitLeftFactor a;
#pragma unroll
      for (int p = 0; p < parts_of_number; ++p)
        load_matrices(a[p], shared_address(rows + (2 * m + matrix % 2) * split_block_words + p * part_words +
                                           (2 * side() + matrix / 2) * warp_lanes + lane_ % 8 * 4));
      sums[m].template add<false, 0>(a, b);
    }
  }
  static __device__ void finish(const Sums& sums, Products& x) {
#pragma unroll
    for (int m = 0; m < 2; ++m) sums[m].finish(x[m]);
  }

  /// each(m, half, row) of the rows that this lane has.
  template <class Each>
  __device__ void each_row(Each each) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (row(m, half) < chunk_.rows) each(m, half, row(m, half));
  }
  /// Of a row's four numbers e of a product: channels 2 t, + 1, + 8 and + 9.
  static __device__ float& number(Products& x, int m, int half, int e) {
    return x[m][e / 2][2 * half + e % 2];
  }
  static __device__ float number(const float4& x, int e) {
    return e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
  }
  __device__ int channel(int e) const { return 16 * group() + 2 * (lane_ % 4) + e % 2 + e / 2 * 8; }

  /// dk, scaled; what the rows of a lane give to the sum of k_i dk_i, which those of the other side that do
  /// not have the last row leave for those that have.
  __device__ void end_keys(Products& dk, float (&of_keys)[4]) const {
    each_row([&](int m, int half, int row) {
      const float4 end = load_half(this->ends(2 * m + half, group()), side(), lane_),
                   key = this->four(s_.k, row, group());
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = number(dk, m, half, e);
        x = x * number(end, e);
        of_keys[e] = fmaf(number(key, e), x, of_keys[e]);
      }
    });
    if (has_last_row()) return;
#pragma unroll
    for (int e = 0; e < 4; ++e) s_.states.of_rows[lane_ / 4][channel(e)] = of_keys[e];
  }
  __device__ bool has_last_row() const { return (chunk_.rows - 1) / 8 % 2 == side(); }

  /// What the last row of dG takes of a channel, from what a lane has of sum_i k_i dk_i.
  __device__ float of_last_row(int k, float of_keys) const {
    float sum = of_keys + s_.states.of_rows[lane_ / 4][k];
#pragma unroll
    for (int side = 4; side > 0; side /= 2) sum = sum + __shfl_xor_sync(whole_warp, sum, 4 * side);
    return fmaf(exponential_of(this->G(chunk_.rows - 1, k)), s_.states.of_states[k], sum);
  }

  /// dq and dk; dG in the place of what stayed within the chunk.
  __device__ void hand_out(Products& dq, Products& dk, Products& through_errors, float (&of_keys)[4]) const {
    const float scale = static_cast<float>(p_.scale);
    float last[4]{};
    if (has_last_row())
#pragma unroll
      for (int e = 0; e < 4; ++e) last[e] = of_last_row(channel(e), of_keys[e]);
    each_row([&](int m, int half, int row) {
      const float4 G = this->four(s_.G, row, group()), query = this->four(s_.q, row, group()),
                   key = this->four(s_.k, row, group()), dq_within = this->four(s_.sums[0], row, group()),
                   dk_within = this->four(s_.sums[1], row, group());
      float4& dG = this->four(s_.sums[2], row, group());
      float gate[4] = {dG.x, dG.y, dG.z, dG.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float decay = exponential_of(number(G, e)), q = number(query, e), k = number(key, e),
                    of_query = scale * (number(dq, m, half, e) * decay), of_key = number(dk, m, half, e),
                    through = number(through_errors, m, half, e) * decay;
        float x = fmaf(k, through, fmaf(q, of_query, -(k * of_key)));
        if (row == chunk_.rows - 1) x = x + last[e];
        gate[e] = x + gate[e];
        number(dq, m, half, e) = of_query + number(dq_within, e);
        number(dk, m, half, e) = (of_key + through) + number(dk_within, e);
      }
      dG = {gate[0], gate[1], gate[2], gate[3]};
      const std::size_t to = work_.row(chunk_.token + row, chunk_.local) * static_cast<unsigned>(p_.K);
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        this->store(work_.dq + to, channel(e), number(dq, m, half, e), number(dq, m, half, e + 1));
        this->store(work_.dk + to, channel(e), number(dk, m, half, e), number(dk, m, half, e + 1));
      }
    });
  }
};

#endif

template <int width, bool by_pairs, bool tells>
__global__ void __launch_bounds__(gradient_threads, 1)
    split_gradients(const __grid_constant__ DeviceProblem p, const __grid_constant__ SplitBackwardWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  SplitGradients<width, by_pairs, tells>(p, work, *reinterpret_cast<SplitGradientShared<width>*>(memory))
      .all();
#endif
}

}  // namespace

void launch_split_gradients(const DeviceProblem& p, const SplitBackwardWork& work) {
  for_width<narrow_tensor_core_key>(p.K, [&](auto width) {
    const auto launch_kernel = [&](auto tells) {
      launch("gpu-chunk backwards on tensor cores in fp32, chunks",
             work.decay == DecayForm::anchor_pair ? split_gradients<width, true, tells>
                                                  : split_gradients<width, false, tells>,
             dim3(static_cast<unsigned>(work.chunk_count) * static_cast<unsigned>(work.heads)),
             gradient_threads, sizeof(SplitGradientShared<width>), p, work);
    };
    work.gradient_stages.dAqk != nullptr ? launch_kernel(std::true_type{}) : launch_kernel(std::false_type{});
  });
}

}  // namespace kda_check::cuda

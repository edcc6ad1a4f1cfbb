// What a block has of a chunk of a head backwards, and how it comes to shared memory: keys and gates stay;
// what is as wide as V comes in tiles of 32 columns, twice: first for the gradients of scores and of the
// inverse, then, when those are done, for what goes through the states.
#pragma once

#include "cuda/variants/tensor_cores/backward.cuh"
#include "cuda/variants/tensor_cores/inputs.cuh"

namespace kda_check::cuda {

/// Columns of V at a time.
constexpr int value_tile = 32;
/// Bytes between rows of v and do: eight rows of 16 bytes are in different banks.
constexpr int value_tile_row = 2 * value_tile + 16;
/// Lanes that add up a row of r e.
constexpr int error_lanes = 16;

template <int width>
struct ErrorTile {
  std::uint16_t h[value_tile * width];
  std::uint16_t v_new[value_tile * image_rows], dv[value_tile * image_rows];
  unsigned char v[image_rows * value_tile_row];  ///< then p
  unsigned char d_o[image_rows * value_tile_row];
};
template <int width>
struct StateTile {
  std::uint16_t h[value_tile * width], dh[value_tile * width];
  std::uint16_t v_new[value_tile * image_rows], dp[value_tile * image_rows];
  unsigned char d_o[image_rows * value_tile_row];
};

template <int width_>
struct GradientShared {
  static constexpr int width = width_;
  std::uint16_t q[image_rows * width], k[image_rows * width];  ///< as stored, in the layout of an image
  float G[image_rows * width];
  union {
    struct {
      std::uint16_t k_start[image_rows * width], inverse[image_rows * image_rows];
      ErrorTile<width> tile[2];
      float of_lanes[image_rows * error_lanes];  ///< of r e
    } errors;
    /// What stays within the chunk: dqi, row and column; then what it gives to dq, dk and dG; then dG.
    float sums[3][image_rows * width];
  };
  union {
    float left_G[image_rows * width];  ///< in the layout of those who left it
    struct {
      union {
        struct {
          float dAqk[lower_blocks * block_words];
          float dAkk[lower_blocks * block_words];  ///< first of the inverse
        } scores;
        StateTile<width> odd_tile;
      };
      union {
        float between[lower_blocks * block_words];  ///< the two products with the inverse
        StateTile<width> even_tile;                 ///< the first comes while scores are read
      };
    } late;
  };
  float q_norm[image_rows], k_norm[image_rows], beta[image_rows];
  float of_errors[image_rows];                    ///< r e, summed
  float of_keys[image_rows][width / warp_lanes];  ///< row k, summed over the channels of a warp
  float of_states[4][width];                      ///< h dh of every so many columns of V
  float of_rows[8][width];                        ///< k_i dk_i of rows i mod 16, of eight of these
  std::uint64_t begun, errors_there[2], states_there[2];

  /// Where channel k of a row is in arrays of fp32. Pairs of channels of rows 0 to 3, or 4 to 7, are in
  /// different banks, and eight channels of the even rows of eight, or of the odd ones.
  static __host__ __device__ constexpr int at(int row, int k) {
    return row * width + (k ^ ((row ^ (row >> 2 & 1)) & 3) * 8);
  }
};
static_assert(sizeof(GradientShared<128>) <= 227 * 1024);

#ifdef KDA_CHECK_SM90

template <DType dtype, int width_>
class GradientInputs {
 public:
  static constexpr int width = width_;
  using Image = ChunkImage<width>;
  using Words = Pair<dtype>;
  using Shared = GradientShared<width>;

  __device__ GradientInputs(const DeviceProblem& p, const TensorCoreBackwardWork& work, Shared& shared)
      : p_(p),
        work_(work),
        chunk_(work),
        blocks_((chunk_.rows + 15) / 16),
        tiles_((p.V + value_tile - 1) / value_tile),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / warp_lanes),
        lane_(thread_ % warp_lanes) {
    __builtin_assume(thread_ >= 0 && thread_ < gradient_threads);
  }

 protected:
  /// All that stays, and the first tile, on their way.
  __device__ void begin() {
    const Image& image = reinterpret_cast<const Image*>(work_.images)[begin_of(1)];
    const std::size_t row = work_.row(chunk_.token + min(thread_, chunk_.rows - 1), chunk_.local);
    float q_norm = 0.0f, k_norm = 0.0f, beta = 0.0f;
    if (thread_ < chunk_.rows)
      q_norm = work_.left.q_norm[row], k_norm = work_.left.k_norm[row], beta = image.beta[thread_];
    if (thread_ == 0) {
      gate::make(&s_.begun, 1);
      for (int i = 0; i < 2; ++i) gate::make(&s_.errors_there[i], 1), gate::make(&s_.states_there[i], 1);
      gate::make_known();
      gate::arrive_expecting(&s_.begun, sizeof(image.k_start) + sizeof(image.Akk_inv) + sizeof(s_.left_G));
      begin_load(s_.errors.k_start, image.k_start, sizeof(image.k_start), &s_.begun);
      begin_load(s_.errors.inverse, image.Akk_inv, sizeof(image.Akk_inv), &s_.begun);
      begin_load(s_.left_G, work_.left.G + begin_of(std::size_t(image_rows) * width), sizeof(s_.left_G),
                 &s_.begun);
    }
#pragma unroll 1
    for (int tile = 0; tile < min(2, tiles_); ++tile) begin_errors(tile);
    begin_keys();
    announce_errors();
    if (thread_ < image_rows)
      s_.q_norm[thread_] = q_norm, s_.k_norm[thread_] = k_norm, s_.beta[thread_] = beta;
    __syncthreads();
  }
  /// G to where it stays. Four words of a row, as it was left, are two pairs of channels.
  __device__ void spread_gates() const {
#pragma unroll
    for (int n = 0; n < image_rows * width / 4 / gradient_threads; ++n) {
      using Left = PrepareShared<width>;
      const int at = 4 * (thread_ + n * gradient_threads), row = at / width,
                k = Left::channel_of(Left::row_word(row, at % width) % width);
      const float4 x = *reinterpret_cast<const float4*>(s_.left_G + at);
      pair(s_.G, row, k) = {x.x, x.y};
      pair(s_.G, row, k + 8) = {x.z, x.w};
    }
  }

  /// Columns of V of a tile, filled up to whole instructions, in these: 1 or 2.
  __device__ int steps(int tile) const { return min(2, value_rows(p_.V) / 16 - 2 * tile); }

  __device__ void begin_errors(int tile) const {
    auto& to = s_.errors.tile[tile % 2];
    if (thread_ == 0) {
      const unsigned rows = 16 * steps(tile), of_state = rows * width * 2, of_values = rows * image_rows * 2;
      std::uint64_t* const there = &s_.errors_there[tile % 2];
      gate::arrive_expecting(there, of_state + 2 * of_values);
      begin_load(to.h, state(work_.left.h, tile), of_state, there);
      begin_load(to.v_new, values(work_.left.v_new, tile), of_values, there);
      begin_load(to.dv, values(work_.dv, tile), of_values, there);
    }
    begin_rows(to.v, p_.v, tile, 0);
    begin_rows(to.d_o, p_.output_gradient, tile, gradient_threads / 2);
  }
  /// ... are there, and nobody reads the tile before.
  __device__ void wait_for_errors(int tile) const {
    wait_for_copies();
    gate::wait(&s_.errors_there[tile % 2], tile / 2);
    before_bulk_copies();
    __syncthreads();
  }

  __device__ void announce_states() const {
    if (thread_ != gradient_threads - 1) return;
    announce(work_.dh, state_image(p_.V, width)), announce(work_.dp, value_image(p_.V));
  }
  __device__ StateTile<width>& state_tile(int tile) const {
    return tile % 2 == 0 ? s_.late.even_tile : s_.late.odd_tile;
  }
  __device__ void begin_states(int tile) const {
    auto& to = state_tile(tile);
    if (thread_ == 0) {
      const unsigned rows = 16 * steps(tile), of_state = rows * width * 2, of_values = rows * image_rows * 2;
      std::uint64_t* const there = &s_.states_there[tile % 2];
      gate::arrive_expecting(there, 2 * of_state + 2 * of_values);
      begin_load(to.h, state(work_.left.h, tile), of_state, there);
      begin_load(to.dh, state(work_.dh, tile), of_state, there);
      begin_load(to.v_new, values(work_.left.v_new, tile), of_values, there);
      begin_load(to.dp, values(work_.dp, tile), of_values, there);
    }
    begin_rows(to.d_o, p_.output_gradient, tile, 0);
  }
  __device__ void wait_for_states(int tile) const {
    wait_for_copies();
    gate::wait(&s_.states_there[tile % 2], tile / 2);
    before_bulk_copies();
    __syncthreads();
  }

  static __device__ float exponential_of(float x) { return ex2_ftz(x); }
  static __device__ int place(int row, int k) { return Shared::at(row, k); }
  __device__ float2& pair(float* x, int row, int k) const {
    return *reinterpret_cast<float2*>(x + place(row, k));
  }
  __device__ float G(int row, int k) const { return s_.G[place(row, k)]; }
  __device__ float2 gates(int row, int k) const { return pair(s_.G, row, k); }
  __device__ float query(int row, int k) const {
    return Words::first(s_.q[Image::template at<width>(row, k)]) * s_.q_norm[row];
  }
  __device__ float key(int row, int k) const {
    return Words::first(s_.k[Image::template at<width>(row, k)]) * s_.k_norm[row];
  }

  const DeviceProblem& p_;
  const TensorCoreBackwardWork& work_;
  const ChunkOfHead chunk_;
  const int blocks_, tiles_;  ///< of 16 rows; of V
  Shared& s_;
  const int thread_, warp_, lane_;

 private:
  __device__ std::size_t begin_of(std::size_t elements) const {
    return work_.image(chunk_.chunk, chunk_.local, elements);
  }
  __device__ const std::uint16_t* state(const std::uint16_t* array, int tile) const {
    return array + begin_of(state_image(p_.V, width)) + std::size_t(tile) * value_tile * width;
  }
  __device__ const std::uint16_t* values(const std::uint16_t* array, int tile) const {
    return array + begin_of(value_image(p_.V)) + std::size_t(tile) * value_tile * image_rows;
  }

  /// What tiles are made of, on its way to the second cache: it is further from memory than a tile takes.
  __device__ void announce_errors() const {
    if (thread_ == gradient_threads - 1) {
      announce(work_.left.h, state_image(p_.V, width));
      announce(work_.left.v_new, value_image(p_.V)), announce(work_.dv, value_image(p_.V));
    }
    if (thread_ >= 2 * image_rows) return;
    const Tensor& rows = thread_ < image_rows ? p_.v : p_.output_gradient;
    const int row = thread_ % image_rows;
    if (rows.data == nullptr || row >= chunk_.rows) return;
    const auto* const from =
        static_cast<const std::uint16_t*>(rows.data) + p_.at(chunk_.token + row, p_.HV, chunk_.head) * p_.V;
    for (int v = value_tile; v < p_.V; v += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + v));
  }
  /// This chunk's of an array.
  __device__ void announce(const std::uint16_t* array, std::size_t elements) const {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(array + begin_of(elements)),
                 "r"(static_cast<std::uint32_t>(2 * elements)));
  }
  /// Rows of q and k, zeros beyond the last and beyond K.
  __device__ void begin_keys() const {
    constexpr int units = width / 8, rows_together = gradient_threads / units;
    const int k = thread_ % units * 8;
    const std::size_t from = p_.at(chunk_.token, p_.H, chunk_.query_head) * p_.K + k,
                      stride = std::size_t(p_.H) * p_.K;
    const auto* const q = static_cast<const std::uint16_t*>(p_.q.data);
    const auto* const keys = static_cast<const std::uint16_t*>(p_.k.data);
#pragma unroll 1
    for (int row = thread_ / units; row < image_rows; row += rows_together) {
      const int to = Image::template at<width>(row, k);
      const bool is_row = row < chunk_.rows, is_there = is_row && k < p_.K;
      const std::size_t at = is_there ? from + row * stride : 0;
      if (p_.K % 8 == 0) {
        begin_copy_16(s_.q + to, q + at, is_there);
        begin_copy_16(s_.k + to, keys + at, is_there);
      } else {
#pragma unroll 1
        for (int e = 0; e < 8; ++e) {
          const bool has_channel = is_row && k + e < p_.K;
          s_.q[to + e] = has_channel ? q[at + e] : std::uint16_t(0);
          s_.k[to + e] = has_channel ? keys[at + e] : std::uint16_t(0);
        }
      }
    }
  }
  /// The chunk's rows of a tile of V of a stored tensor, zeros where there is nothing; by half of the
  /// threads, from `first` on.
  __device__ void begin_rows(unsigned char* to, const Tensor& from, int tile, int first) const {
    const int thread = thread_ - first, column = tile * value_tile;
    if (thread < 0 || thread >= gradient_threads / 2) return;
    const auto* const stored = static_cast<const std::uint16_t*>(from.data);
    const auto row_at = [&](int row) {
      return p_.at(chunk_.token + row, p_.HV, chunk_.head) * p_.V + column;
    };
    if (stored != nullptr && p_.V % 8 == 0) {
      static_assert(gradient_threads / 2 == image_rows * value_tile / 8);
      const int row = thread / 4, e = thread % 4 * 8;
      const bool is_there = row < chunk_.rows && column + e < p_.V;
      begin_copy_16(to + row * value_tile_row + 2 * e, is_there ? stored + row_at(row) + e : stored,
                    is_there);
      return;
    }
#pragma unroll 1
    for (int i = thread; i < image_rows * value_tile; i += gradient_threads / 2) {
      const int row = i / value_tile, e = i % value_tile;
      const bool is_there = stored != nullptr && row < chunk_.rows && column + e < p_.V;
      *reinterpret_cast<std::uint16_t*>(to + row * value_tile_row + 2 * e) =
          is_there ? stored[row_at(row) + e] : std::uint16_t(0);
    }
  }
};

#endif

}  // namespace kda_check::cuda

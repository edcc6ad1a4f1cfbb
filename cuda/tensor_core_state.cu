// The state from chunk to chunk on tensor cores, v_new and o (F8 to F11). A warp has 16 columns of V: all of
// the state they need is in its registers, transposed, and every product's result is the next one's operand
// where it is. What warps share are the images, which a fifth one keeps ahead of them.
#include "launch.cuh"
#include "tensor_core.cuh"
#include "tensor_core_chunk.cuh"

namespace kda_check::cuda {

namespace {

using numeric::DType;

constexpr int column_warps = 4, warp_columns = 16, tile_columns = column_warps * warp_columns;
constexpr int threads = (column_warps + 1) * warp_lanes;
constexpr int stages = 3;
/// Bytes between rows of v: what a warp reads at once lies in different banks.
constexpr int value_row = 2 * tile_columns + 16;

template <int width>
struct Stage {
  ChunkImage<width> image;
  unsigned char v[image_rows * value_row];  ///< of the tile; then its o
};
template <int width>
struct StateShared {
  Stage<width> stage[stages];
  std::uint64_t filled[stages], emptied[stages];
};

#ifdef KDA_CHECK_SM90

/// One tile of V of one head of a sequence.
struct Tile {
  int local, head, sequence, first_column, columns;
  unsigned first_token, tokens, first_chunk, chunks;

  __device__ Tile(const DeviceProblem& p, const TensorCoreWork& work) {
    const unsigned tiles = (p.V + tile_columns - 1) / tile_columns, of_head = blockIdx.x / tiles;
    first_column = static_cast<int>(blockIdx.x % tiles) * tile_columns;
    columns = min(tile_columns, p.V - first_column);
    local = static_cast<int>(of_head % work.heads), sequence = static_cast<int>(of_head / work.heads);
    head = work.first_head + local;
    const TokenRange range = work.sequences[sequence];
    const PieceRange pieces = work.chunks_of[sequence];
    first_token = range.first, tokens = range.count, first_chunk = pieces.first, chunks = pieces.count;
  }
  __device__ int rows(unsigned chunk) const {
    return static_cast<int>(min(static_cast<unsigned>(image_rows), tokens - chunk * image_rows));
  }
  /// Where the tile's part of a row begins in v and o.
  __device__ std::size_t row(const DeviceProblem& p, unsigned chunk, int at) const {
    return p.at(std::size_t{first_token} + chunk * image_rows + at, p.HV, head) * p.V + first_column;
  }
};

/// Fills stage after stage.
template <int width>
__device__ void feed(const DeviceProblem& p, const TensorCoreWork& work, const Tile& tile,
                     StateShared<width>& shared) {
  using Image = ChunkImage<width>;
  const int lane = threadIdx.x % warp_lanes;
  const bool is_aligned = p.V % 8 == 0;
  const auto* const images = reinterpret_cast<const Image*>(work.images);
  const auto* const v = static_cast<const std::uint16_t*>(p.v.data);
  for (unsigned c = 0; c < tile.chunks; ++c) {
    const unsigned at = c % stages, round = c / stages;
    Stage<width>& stage = shared.stage[at];
    if (round > 0) gate::wait(&shared.emptied[at], round - 1);
    const int rows = tile.rows(c);
    if (!is_aligned)
      for (int e = lane; e < rows * tile.columns; e += warp_lanes) {
        const int row = e / tile.columns, column = e % tile.columns;
        *reinterpret_cast<std::uint16_t*>(stage.v + row * value_row + 2 * column) =
            v[tile.row(p, c, row) + column];
      }
    __syncwarp();
    if (lane == 0) {
      gate::arrive_expecting(&shared.filled[at],
                             sizeof(Image) + (is_aligned ? unsigned(rows * tile.columns) * 2 : 0));
      begin_load(&stage.image, images + std::size_t{tile.first_chunk + c} * work.heads + tile.local,
                 sizeof(Image), &shared.filled[at]);
    }
    __syncwarp();
    if (is_aligned)
      for (int row = lane; row < rows; row += warp_lanes)
        begin_load(stage.v + row * value_row, v + tile.row(p, c, row), unsigned(tile.columns) * 2,
                   &shared.filled[at]);
  }
}

/// Transposed operands: rows of a product are columns of V, its columns rows of the chunk or channels.
template <DType dtype, int width>
class ColumnsOfState {
 public:
  using Image = ChunkImage<width>;
  using Words = Pair<dtype>;
  static constexpr int channels = width / 8, rows = image_rows / 8;  ///< in tiles of eight
  using Products = float[rows][4];                                   ///< of 16 columns with all rows
  using Operand = std::uint32_t[rows / 2][4];

  __device__ ColumnsOfState(const DeviceProblem& p, const Tile& tile)
      : p_(p), tile_(tile), warp_(threadIdx.x / warp_lanes), lane_(threadIdx.x % warp_lanes) {
    each_element([&](float& x, int k, int v, bool is_there) {
      x = is_there && p_.initial_state.data != nullptr
              ? load<float>(p_.initial_state, state_element(p_, state(), k, v))
              : 0.0f;
    });
  }

  __device__ void take(Stage<width>& stage, unsigned chunk) {
    const Image& image = stage.image;
    const int count = tile_.rows(chunk);
    std::uint32_t h[width / 16][4];
#pragma unroll
    for (int k = 0; k < width / 16; ++k) as_operand(S_[2 * k], S_[2 * k + 1], h[k]);
    Operand writes;
    {
      Products sum{};
      multiply(h, image.k_start, sum);
      subtract(stage, count, sum, writes);
      Products made{};
      multiply_lower(writes, image.Akk_inv, made);
      as_operand(made, writes);
    }
    {
      Products sum{};
      multiply(h, image.q_start, sum);
      const float scale = static_cast<float>(p_.scale);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (float& x : sum[r]) x = scale * x;
      multiply_lower(writes, image.Aqk, sum);
      hand_out(stage, chunk, count, sum);
    }
    update(image, writes);
  }

  __device__ void finish() {
    each_element([&](float& x, int k, int v, bool is_there) {
      if (is_there) store(x, p_.final_state.data, p_.final_state.dtype, state_element(p_, state(), k, v));
    });
  }

 private:
  __device__ std::size_t state() const { return std::size_t(tile_.sequence) * p_.HV + tile_.head; }
  __device__ int matrix() const { return lane_ / 8; }
  __device__ int in_matrix() const { return lane_ % 8; }

  template <class Use>
  __device__ void each_element(Use use) {
#pragma unroll
    for (int n = 0; n < channels; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = 8 * n + 2 * (lane_ % 4) + e % 2,
                  column = warp_ * warp_columns + lane_ / 4 + 8 * (e / 2);
        use(S_[n][e], k, tile_.first_column + column, k < p_.K && column < tile_.columns);
      }
  }
  static __device__ void as_operand(const float (&first)[4], const float (&second)[4],
                                    std::uint32_t (&operand)[4]) {
    operand[0] = Words::of(first[0], first[1]), operand[1] = Words::of(first[2], first[3]);
    operand[2] = Words::of(second[0], second[1]), operand[3] = Words::of(second[2], second[3]);
  }
  static __device__ void as_operand(const Products& products, Operand& operand) {
#pragma unroll
    for (int k = 0; k < rows / 2; ++k) as_operand(products[2 * k], products[2 * k + 1], operand[k]);
  }

  /// sum += h^T keys^T
  __device__ void multiply(const std::uint32_t (&h)[width / 16][4], const std::uint16_t* keys,
                           Products& sum) const {
    const std::uint32_t from = shared_address(keys);
#pragma unroll
    for (int k = 0; k < width / 32; ++k)
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        std::uint32_t b[4];
        load_matrices(b, from + 2 * Image::template at<width>(8 * r + in_matrix(), 8 * (4 * k + matrix())));
        multiply_16<dtype>(sum[r], h[2 * k], b[0], b[1]);
        multiply_16<dtype>(sum[r], h[2 * k + 1], b[2], b[3]);
      }
  }
  /// sum += x^T A^T; row i of A ends with its block of 16.
  __device__ void multiply_lower(const Operand& x, const std::uint16_t* A, Products& sum) const {
    const std::uint32_t from = shared_address(A);
#pragma unroll
    for (int k = 0; k < rows / 2; k += 2)
#pragma unroll
      for (int r = 2 * k; r < rows; ++r) {
        std::uint32_t b[4];
        load_matrices(b,
                      from + 2 * Image::template at<image_rows>(8 * r + in_matrix(), 8 * (2 * k + matrix())));
        multiply_16<dtype>(sum[r], x[k], b[0], b[1]);
        if (r >= 2 * k + 2) multiply_16<dtype>(sum[r], x[k + 1], b[2], b[3]);
      }
  }
  /// Where rows [8 (r + matrix / 2), + 8) of this warp's columns, first or second half, lie in v.
  __device__ std::uint32_t values_at(const Stage<width>& stage, int r) const {
    return shared_address(stage.v) + (8 * (r + matrix() / 2) + in_matrix()) * value_row +
           2 * (warp_ * warp_columns + 8 * (matrix() % 2));
  }
  /// (v - prediction) beta
  __device__ void subtract(const Stage<width>& stage, int count, const Products& prediction,
                           Operand& residual) const {
#pragma unroll
    for (int r = 0; r < rows; r += 2) {
      std::uint32_t v[4];
      load_transposed(v, values_at(stage, r));
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        const int row = 8 * (r + next) + 2 * (lane_ % 4);
        const float2 beta = *reinterpret_cast<const float2*>(stage.image.beta + row);
        const float(&p)[4] = prediction[r + next];
        const bool has_first = row < count, has_second = row + 1 < count;
        residual[r / 2][2 * next] =
            Words::of(has_first ? (Words::first(v[2 * next]) - p[0]) * beta.x : 0.0f,
                      has_second ? (Words::second(v[2 * next]) - p[1]) * beta.y : 0.0f);
        residual[r / 2][2 * next + 1] =
            Words::of(has_first ? (Words::first(v[2 * next + 1]) - p[2]) * beta.x : 0.0f,
                      has_second ? (Words::second(v[2 * next + 1]) - p[3]) * beta.y : 0.0f);
      }
    }
  }
  /// o, by way of the place where v was, which nobody else has.
  __device__ void hand_out(Stage<width>& stage, unsigned chunk, int count, const Products& o) const {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < rows; r += 2)
      store_transposed(values_at(stage, r),
                       {Words::of(o[r][0], o[r][1]), Words::of(o[r][2], o[r][3]),
                        Words::of(o[r + 1][0], o[r + 1][1]), Words::of(o[r + 1][2], o[r + 1][3])});
    __syncwarp();
    auto* const target = static_cast<std::uint16_t*>(p_.o.data);
    const int column = warp_ * warp_columns + 8 * (lane_ % 2);
#pragma unroll
    for (int row = lane_ / 2; row < image_rows; row += warp_lanes / 2) {
      if (row >= count) break;
      const auto* const source = reinterpret_cast<const std::uint16_t*>(stage.v + row * value_row) + column;
      std::uint16_t* const to = target + tile_.row(p_, chunk, row) + column;
      if (p_.V % 8 == 0) {
        if (column < tile_.columns) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(source);
      } else {
        for (int e = 0; e < min(8, tile_.columns - column); ++e) to[e] = source[e];
      }
    }
  }
  /// S = decay S + k_end^T v_new
  __device__ void update(const Image& image, const Operand& v_new) {
#pragma unroll
    for (int n = 0; n < channels; ++n) {
      const float2 decay = *reinterpret_cast<const float2*>(image.decay + 8 * n + 2 * (lane_ % 4));
      S_[n][0] = S_[n][0] * decay.x, S_[n][1] = S_[n][1] * decay.y;
      S_[n][2] = S_[n][2] * decay.x, S_[n][3] = S_[n][3] * decay.y;
    }
    const std::uint32_t from = shared_address(image.k_end);
#pragma unroll
    for (int k = 0; k < rows / 2; ++k)
#pragma unroll
      for (int n = 0; n < channels; n += 2) {
        std::uint32_t b[4];
        load_transposed(b, from + 2 * Image::template at<width>(16 * k + 8 * (matrix() % 2) + in_matrix(),
                                                                8 * (n + matrix() / 2)));
        multiply_16<dtype>(S_[n], v_new[k], b[0], b[1]);
        multiply_16<dtype>(S_[n + 1], v_new[k], b[2], b[3]);
      }
  }

  const DeviceProblem& p_;
  const Tile& tile_;
  const int warp_, lane_;
  float S_[channels][4];  ///< of S^T
};

#endif

template <DType dtype, int width>
__global__ void __launch_bounds__(threads, 1)
    state_on_tensor_cores(const __grid_constant__ DeviceProblem p,
                          const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<StateShared<width>*>(memory);
  for (int i = threadIdx.x; i < stages * image_rows * value_row / 4; i += threads) {  // columns beyond V
    constexpr int words = image_rows * value_row / 4;
    reinterpret_cast<std::uint32_t*>(shared.stage[i / words].v)[i % words] = 0;
  }
  if (threadIdx.x == 0)
    for (int i = 0; i < stages; ++i)
      gate::make(&shared.filled[i], 1), gate::make(&shared.emptied[i], column_warps);
  gate::make_known();
  before_bulk_copies();
  __syncthreads();
  const Tile tile(p, work);
  if (threadIdx.x >= column_warps * warp_lanes) return feed(p, work, tile, shared);
  ColumnsOfState<dtype, width> columns(p, tile);
  for (unsigned c = 0; c < tile.chunks; ++c) {
    gate::wait(&shared.filled[c % stages], c / stages);
    columns.take(shared.stage[c % stages], c);
    before_bulk_copies();
    __syncwarp();
    if (threadIdx.x % warp_lanes == 0) gate::arrive(&shared.emptied[c % stages]);
  }
  columns.finish();
#endif
}

}  // namespace

bool has_tensor_core_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, state_on_tensor_cores<DType::bf16, 128>);
  cudaGetLastError();  // without an image for this device there are none
  return status == cudaSuccess && attributes.ptxVersion >= 90;
}

void launch_tensor_core_state(const DeviceProblem& p, const TensorCoreWork& work) {
  const unsigned tiles = (p.V + tile_columns - 1) / tile_columns;
  for_operands(p.v.dtype, p.K, [&](auto dtype, auto width) {
    launch("gpu-chunk on tensor cores, state", state_on_tensor_cores<dtype, width>,
           dim3(tiles * static_cast<unsigned>(work.heads) * static_cast<unsigned>(work.sequence_count)),
           threads, sizeof(StateShared<width>), p, work);
  });
}

}  // namespace kda_check::cuda

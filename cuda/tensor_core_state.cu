// The state from chunk to chunk on tensor cores, v_new and o (F8 to F11). A warp has 16 columns of V: all of
// the state they need is in its registers, transposed, and every product's result is the next one's operand
// where it is. What warps share are the images, which another one keeps ahead of them.
#include <cstddef>

#include "launch.cuh"
#include "tensor_core_feed.cuh"

namespace kda_check::cuda {

namespace {

using numeric::DType;

#ifdef KDA_CHECK_SM90

/// Transposed operands: rows of a product are columns of V, its columns rows of the chunk or channels.
template <DType dtype, class Cut, bool tells>
class ColumnsOfState {
 public:
  static constexpr int width = Cut::width;
  using Image = ChunkImage<width>;
  using Words = Pair<dtype>;
  static constexpr int channels = width / 8, rows = image_rows / 8;  ///< in tiles of eight
  using Products = float[rows][4];                                   ///< of 16 columns with all rows
  using Operand = std::uint32_t[rows / 2][4];

  __device__ ColumnsOfState(const DeviceProblem& p, const TensorCoreWork& work, const Tile& tile)
      : p_(p), work_(work), tile_(tile), warp_(threadIdx.x / warp_lanes), lane_(threadIdx.x % warp_lanes) {
    const auto fill = [&](auto value) {
      each_element([&](float& x, int k, int v, bool is_there) {
        x = is_there ? value(state_element(p_, state(), k, v)) : 0.0f;
      });
    };
    const Tensor from = p_.initial_state;
    if (from.data == nullptr)
      fill([](std::size_t) { return 0.0f; });
    else if (from.dtype == DType::fp32)  // all of them on their way before anybody waits
      fill([=](std::size_t i) { return static_cast<const float*>(from.data)[i]; });
    else
      fill([=](std::size_t i) { return load<float>(from, i); });
  }

  __device__ void take(Stage<Cut>& stage, unsigned chunk) {
    const std::uint32_t image = shared_address(&stage.image);
    const int count = tile_.rows(chunk);
    std::uint32_t h[width / 16][4];
#pragma unroll
    for (int k = 0; k < width / 16; ++k) as_operand(S_[2 * k], S_[2 * k + 1], h[k]);
    Operand writes;
    if constexpr (tells) {
      tell_state(chunk);
      tell_operands(stage, chunk, writes);
    }
    {
      Products sum{};
      multiply(h, image, offsetof(Image, k_start), sum);
      subtract(stage, count, sum, writes);
      Products made{};
      multiply_lower(writes, image, offsetof(Image, Akk_inv), made);
      as_operand(made, writes);
      if constexpr (tells)
        each_product(made, chunk, tile_.first_column + warp_ * warp_columns, p_.V,
                     [this](float x, std::size_t at) { work_.stages.v_new[at] = rounded(x); });
    }
    {
      Products sum{};
      multiply(h, image, offsetof(Image, q_start), sum);
      const float scale = static_cast<float>(p_.scale);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (float& x : sum[r]) x = scale * x;
      multiply_lower(writes, image, offsetof(Image, Aqk), sum);
      hand_out(stage, chunk, count, sum);
    }
    update(stage.image, writes);
  }

  __device__ void finish() {
    const auto hand_out = [&](auto keep) {
      each_element([&](float& x, int k, int v, bool is_there) {
        if (is_there) keep(x, state_element(p_, state(), k, v));
      });
    };
    const MutableTensor to = p_.final_state;
    if (to.dtype == DType::fp32)
      return hand_out([=](float x, std::size_t i) { static_cast<float*>(to.data)[i] = x; });
    hand_out([=](float x, std::size_t i) { store(x, to.data, to.dtype, i); });
  }

 private:
  // Stages, for those who ask.
  static __device__ float rounded(float x) { return Words::first(Words::of(x, 0.0f)); }
  /// each(x, element in [tokens][heads][columns]) of this warp's products, whose first column is `first`.
  template <class Products_, class Each>
  __device__ void each_product(Products_& x, unsigned chunk, int first, int columns, Each each) const {
    const std::size_t token = std::size_t{tile_.first_token} + chunk * image_rows;
    const int count = tile_.rows(chunk);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 8 * r + 2 * (lane_ % 4) + e % 2, column = first + lane_ / 4 + 8 * (e / 2);
        if (row < count && column < columns)
          each(x[r][e], work_.row(token + row, tile_.local) * columns + column);
      }
  }
  /// h
  __device__ void tell_state(unsigned chunk) {
    float* const h = work_.stages.h + work_.state(tile_.first_chunk + chunk, tile_.local, p_);
    each_element([&](float& x, int k, int v, bool is_there) {
      if (is_there) h[std::size_t(k) * p_.V + v] = rounded(x);
    });
  }
  /// u, and, beside the first columns of V, w: the inverse times beta v and beta k 2^G.
  __device__ void tell_operands(const Stage<Cut>& stage, unsigned chunk, Operand& operand) const {
    const std::uint32_t image = shared_address(&stage.image);
    const auto solve = [&](Products& solved) {
      multiply_lower(operand, image, offsetof(Image, Akk_inv), solved);
    };
    {
      Products none{}, u{};
      subtract(stage, tile_.rows(chunk), none, operand);
      solve(u);
      each_product(u, chunk, tile_.first_column + warp_ * warp_columns, p_.V,
                   [this](float x, std::size_t at) { work_.stages.u[at] = x; });
    }
    if (tile_.first_column > 0) return;
    for (int first = warp_ * warp_columns; first < p_.K; first += Cut::columns) {
      Products keys{}, w{};
      each_product(keys, chunk, first, p_.K, [this](float& x, std::size_t at) { x = work_.stages.w[at]; });
      as_operand(keys, operand);
      solve(w);
      each_product(w, chunk, first, p_.K, [this](float x, std::size_t at) { work_.stages.w[at] = x; });
    }
  }

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

  /// sum += h^T keys^T, of keys at a byte of the image.
  __device__ void multiply(const std::uint32_t (&h)[width / 16][4], std::uint32_t image, std::size_t keys,
                           Products& sum) const {
    const std::uint32_t start = image + 2 * Image::template at<width>(in_matrix(), 8 * matrix());
#pragma unroll
    for (int k = 0; k < width / 32; ++k)
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        std::uint32_t b[4];
        load_matrices(b, Image::further(start, 4 * k, keys + 16 * r * width));
        multiply_16<dtype>(sum[r], h[2 * k], b[0], b[1]);
        multiply_16<dtype>(sum[r], h[2 * k + 1], b[2], b[3]);
      }
  }
  /// sum += x^T A^T, of A at a byte of the image; row i of A ends with its block of 16.
  __device__ void multiply_lower(const Operand& x, std::uint32_t image, std::size_t A, Products& sum) const {
    const std::uint32_t start = image + 2 * Image::template at<image_rows>(in_matrix(), 8 * matrix());
#pragma unroll
    for (int k = 0; k < rows / 2; k += 2)
#pragma unroll
      for (int r = 2 * k; r < rows; ++r) {
        std::uint32_t b[4];
        load_matrices(b, Image::further(start, 2 * k, A + 16 * r * image_rows));
        multiply_16<dtype>(sum[r], x[k], b[0], b[1]);
        if (r >= 2 * k + 2) multiply_16<dtype>(sum[r], x[k + 1], b[2], b[3]);
      }
  }
  /// Where rows [8 (r + matrix / 2), + 8) of this warp's columns, first or second half, lie in v.
  __device__ std::uint32_t values_at(const Stage<Cut>& stage, int r) const {
    return shared_address(stage.v) + (8 * (r + matrix() / 2) + in_matrix()) * Cut::value_row +
           2 * (warp_ * warp_columns + 8 * (matrix() % 2));
  }
  /// (v - prediction) beta
  __device__ void subtract(const Stage<Cut>& stage, int count, const Products& prediction,
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
  __device__ void hand_out(Stage<Cut>& stage, unsigned chunk, int count, const Products& o) const {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < rows; r += 2)
      store_transposed(values_at(stage, r),
                       {Words::of(o[r][0], o[r][1]), Words::of(o[r][2], o[r][3]),
                        Words::of(o[r + 1][0], o[r + 1][1]), Words::of(o[r + 1][2], o[r + 1][3])});
    __syncwarp();
    const int column = warp_ * warp_columns + 8 * (lane_ % 2), first = lane_ / 2;
    constexpr int together = warp_lanes / 2;
    const std::size_t stride = std::size_t(p_.HV) * p_.V * together;
    std::uint16_t* to = static_cast<std::uint16_t*>(p_.o.data) + tile_.row(p_, chunk, first) + column;
#pragma unroll
    for (int row = first; row < first + image_rows; row += together, to += stride) {
      if (row >= count) break;
      const auto* const source =
          reinterpret_cast<const std::uint16_t*>(stage.v + row * Cut::value_row) + column;
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
    const std::uint32_t start =
        shared_address(&image) +
        2 * Image::template at<width>(8 * (matrix() % 2) + in_matrix(), 8 * (matrix() / 2));
#pragma unroll
    for (int k = 0; k < rows / 2; ++k)
#pragma unroll
      for (int n = 0; n < channels; n += 2) {
        std::uint32_t b[4];
        load_transposed(b, Image::further(start, n, offsetof(Image, k_end) + 32 * k * width));
        multiply_16<dtype>(S_[n], v_new[k], b[0], b[1]);
        multiply_16<dtype>(S_[n + 1], v_new[k], b[2], b[3]);
      }
  }

  const DeviceProblem& p_;
  const TensorCoreWork& work_;
  const Tile& tile_;
  const int warp_, lane_;
  float S_[channels][4];  ///< of S^T
};

#endif

template <DType dtype, class Cut, bool tells>
__global__ void __launch_bounds__(Cut::threads, 1)
    state_on_tensor_cores(const __grid_constant__ DeviceProblem p,
                          const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr unsigned stages = Cut::stages, words = image_rows * Cut::value_row / 4;
  auto& shared = *reinterpret_cast<StateShared<Cut>*>(memory);
  for (int i = threadIdx.x; i < stages * words; i += Cut::threads)  // columns beyond V
    reinterpret_cast<std::uint32_t*>(shared.stage[i / words].v)[i % words] = 0;
  if (threadIdx.x == 0)
    for (int i = 0; i < stages; ++i)
      gate::make(&shared.filled[i], warp_lanes + 1), gate::make(&shared.emptied[i], Cut::warps);
  gate::make_known();
  before_bulk_copies();
  __syncthreads();
  const Tile tile(p, work, Cut::columns);
  const unsigned warp = threadIdx.x / warp_lanes;
  if (warp == Cut::warps) {
    for (unsigned c = 0; c < tile.chunks; ++c) feed(p, work, tile, shared, c);
    return;
  }
  const bool feeds = !Cut::has_feeder && warp == 0;
  if (feeds)
    for (unsigned c = 0; c < min(tile.chunks, stages); ++c) feed(p, work, tile, shared, c);
  ColumnsOfState<dtype, Cut, tells> columns(p, work, tile);
  for (unsigned c = 0; c < tile.chunks; ++c) {
    gate::wait(&shared.filled[c % stages], c / stages);
    columns.take(shared.stage[c % stages], c);
    before_bulk_copies();
    __syncwarp();
    if (threadIdx.x % warp_lanes == 0) gate::arrive(&shared.emptied[c % stages]);
    if (feeds && c + stages < tile.chunks) feed(p, work, tile, shared, c + stages);
  }
  columns.finish();
#endif
}

int tiles_of(int V, int columns) { return (V + columns - 1) / columns; }

/// A block fills a processor. As few warps a block as find a processor each at once: they wait less for
/// shared memory; else as many as there can be, which share the images.
int warps_of_block(int V, int states) {
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for processors");
  for (const int warps : {2, 4})
    if (states * tiles_of(V, warps * warp_columns) <= processors) return warps;
  return V > 4 * warp_columns ? 8 : 4;
}

}  // namespace

bool has_tensor_core_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t status =
      cudaFuncGetAttributes(&attributes, state_on_tensor_cores<DType::bf16, Cut<128, 4>, false>);
  cudaGetLastError();  // without an image for this device there are none
  return status == cudaSuccess && attributes.ptxVersion >= 90;
}

void launch_tensor_core_state(const DeviceProblem& p, const TensorCoreWork& work) {
  const int states = work.heads * work.sequence_count, warps = warps_of_block(p.V, states);
  for_operands(p.v.dtype, p.K, [&](auto dtype, auto width) {
    const auto launch_cut = [&](auto cut, auto tells) {
      using Cut = decltype(cut);
      launch("gpu-chunk on tensor cores, state", state_on_tensor_cores<dtype, Cut, tells>,
             dim3(static_cast<unsigned>(states * tiles_of(p.V, Cut::columns))), Cut::threads,
             sizeof(StateShared<Cut>), p, work);
    };
    if (work.stages.h != nullptr) return launch_cut(Cut<width, 4>{}, std::true_type{});
    if (warps == 2) return launch_cut(Cut<width, 2>{}, std::false_type{});
    if (warps == 4) return launch_cut(Cut<width, 4>{}, std::false_type{});
    launch_cut(Cut<width, 8>{}, std::false_type{});
  });
}

}  // namespace kda_check::cuda

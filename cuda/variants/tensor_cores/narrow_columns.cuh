// Columns of a state whose operands are 16-bit numbers: every product's result is the next one's operand
// where it is.
#pragma once

#include <cstddef>

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/backward.cuh"
#include "cuda/variants/tensor_cores/columns.cuh"

namespace kda_check::cuda {

using numeric::DType;

#ifdef KDA_CHECK_SM90

/// Transposed operands: rows of a product are columns of V, its columns rows of the chunk or channels.
template <DType dtype, class Cut>
class NarrowColumns : public StateColumns<Cut> {
 public:
  using Base = StateColumns<Cut>;
  using Base::Base, Base::width, Base::channels, Base::rows;
  using Image = ChunkImage<width>;
  using Words = Pair<dtype>;
  using typename Base::Products;
  using Operand = std::uint32_t[rows / 2][4];
  using StateOperand = std::uint32_t[width / 16][4];

 protected:
  using Base::lane_, Base::p_, Base::S_, Base::tile_, Base::warp_, Base::work_;

  __device__ int matrix() const { return lane_ / 8; }
  __device__ int in_matrix() const { return lane_ % 8; }
  __device__ int first_column() const { return tile_.first_column + warp_ * warp_columns; }

  static __device__ float rounded(float x) { return Words::first(Words::of(x, 0.0f)); }
  static __device__ void as_operand(const float (&first)[4], const float (&second)[4],
                                    std::uint32_t (&operand)[4]) {
    operand[0] = Words::of(first[0], first[1]), operand[1] = Words::of(first[2], first[3]);
    operand[2] = Words::of(second[0], second[1]), operand[3] = Words::of(second[2], second[3]);
  }
  __device__ void as_operand(StateOperand& operand) const {
#pragma unroll
    for (int k = 0; k < width / 16; ++k) as_operand(S_[2 * k], S_[2 * k + 1], operand[k]);
  }
  static __device__ void as_operand(const Products& products, Operand& operand) {
#pragma unroll
    for (int k = 0; k < rows / 2; ++k) as_operand(products[2 * k], products[2 * k + 1], operand[k]);
  }

  /// sum += h^T keys^T, of keys at a byte of the image.
  __device__ void multiply(const StateOperand& h, std::uint32_t image, std::size_t keys,
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
  /// sum += x^T A, of A at a byte of the image; column i of A begins with its block of 16.
  __device__ void multiply_transposed_lower(const Operand& x, std::uint32_t image, std::size_t A,
                                            Products& sum) const {
    const std::uint32_t start =
        image + 2 * Image::template at<image_rows>(8 * (matrix() % 2) + in_matrix(), 8 * (matrix() / 2));
#pragma unroll
    for (int k = 0; k < rows / 2; ++k)
#pragma unroll
      for (int r = 0; r < 2 * k + 2; r += 2) {
        std::uint32_t b[4];
        load_transposed(b, Image::further(start, r, A + 32 * k * image_rows));
        multiply_16<dtype>(sum[r], x[k], b[0], b[1]);
        multiply_16<dtype>(sum[r + 1], x[k], b[2], b[3]);
      }
  }
  /// Tiles n to n + 3 of channels += x^T keys, of keys at a byte of the image: four sums that do not wait for
  /// each other.
  __device__ void multiply_channels(const Operand& x, std::uint32_t image, std::size_t keys, int n,
                                    float (*tiles)[4]) const {
    const std::uint32_t start =
        image + 2 * Image::template at<width>(8 * (matrix() % 2) + in_matrix(), 8 * (matrix() / 2));
#pragma unroll
    for (int k = 0; k < rows / 2; ++k)
#pragma unroll
      for (int pair = 0; pair < 4; pair += 2) {
        std::uint32_t b[4];
        load_transposed(b, Image::further(start, n + pair, keys + 32 * k * width));
        multiply_16<dtype>(tiles[pair], x[k], b[0], b[1]);
        multiply_16<dtype>(tiles[pair + 1], x[k], b[2], b[3]);
      }
  }
  /// Where rows [8 (r + matrix / 2), + 8) of this warp's columns, first or second half, lie in v.
  __device__ std::uint32_t values_at(const Stage<Cut>& stage, int r) const {
    return shared_address(stage.v) + (8 * (r + matrix() / 2) + in_matrix()) * Cut::value_row +
           2 * (warp_ * warp_columns + 8 * (matrix() % 2));
  }
  /// Rows of the tile in a tensor of V, by way of the place where v was, which nobody else has.
  __device__ void hand_out(Stage<Cut>& stage, unsigned chunk, int count, const Products& x,
                           const MutableTensor& tensor) const {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < rows; r += 2)
      store_transposed(values_at(stage, r),
                       {Words::of(x[r][0], x[r][1]), Words::of(x[r][2], x[r][3]),
                        Words::of(x[r + 1][0], x[r + 1][1]), Words::of(x[r + 1][2], x[r + 1][3])});
    __syncwarp();
    const int column = warp_ * warp_columns + 8 * (lane_ % 2), first = lane_ / 2;
    constexpr int together = warp_lanes / 2;
    const std::size_t stride = std::size_t(p_.HV) * p_.V * together;
    std::uint16_t* to = static_cast<std::uint16_t*>(tensor.data) + tile_.row(p_, chunk, first) + column;
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
  /// What other kernels read: 16 rows of an array of rows of `columns` numbers, at `array`.
  template <int columns, int count>
  __device__ void leave(const std::uint32_t (&x)[count][4], std::uint16_t* array) const {
    static_assert(count % 2 == 0 && 16 * count == columns);
    const int first = first_column(), lane = lane_ % 4;
    if (first >= value_rows(p_.V)) return;
#pragma unroll
    for (int k = 0; k < count; k += 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t unit[] = {x[k][half], x[k][half + 2], x[k + 1][half], x[k + 1][half + 2]};
        turn(unit);
        const int row = first + lane_ / 4 + 8 * half;
        *reinterpret_cast<uint4*>(array + Image::template at<columns>(row, 16 * k + 8 * lane)) =
            make_uint4(unit[0], unit[1], unit[2], unit[3]);
      }
  }
  /// Of four lanes: word i of lane l goes to word l of lane i.
  __device__ void turn(std::uint32_t (&x)[4]) const {
#pragma unroll
    for (int side = 1; side < 4; side *= 2)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i & side) continue;
        const bool is_upper = lane_ & side;
        const std::uint32_t other = __shfl_xor_sync(whole_warp, is_upper ? x[i] : x[i + side], side);
        (is_upper ? x[i] : x[i + side]) = other;
      }
  }
};

/// All chunks of a tile through `columns`, by the warps of a block: take(stage, chunk). `values` is what lies
/// beside the images.
template <class Cut, class MakeColumns>
__device__ void take_chunks(const DeviceProblem& p, const TensorCoreWork& work, const Tensor& values,
                            bool from_the_end, unsigned char* memory, MakeColumns make_columns) {
  constexpr unsigned stages = Cut::stages, words = image_rows * Cut::value_row / 4;
  auto& shared = *reinterpret_cast<StateShared<Cut>*>(memory);
  for (int i = threadIdx.x; i < stages * words; i += Cut::threads)  // columns beyond V
    reinterpret_cast<std::uint32_t*>(shared.stage[i / words].v)[i % words] = 0;
  if (threadIdx.x == 0)
    for (int i = 0; i < stages; ++i)
      gate::make(&shared.filled[i], warp_lanes + 1), gate::make(&shared.emptied[i], Cut::warps * warp_lanes);
  gate::make_known();
  before_bulk_copies();
  __syncthreads();
  const Tile tile(p, work, Cut::columns);
  const auto chunk_of = [&](unsigned step) { return from_the_end ? tile.chunks - 1 - step : step; };
  const auto bring = [&](unsigned step) { feed(p, work, tile, values, shared, step, chunk_of(step)); };
  const unsigned warp = threadIdx.x / warp_lanes;
  if (warp == Cut::warps) {
    for (unsigned step = 0; step < tile.chunks; ++step) bring(step);
    return;
  }
  const bool feeds = !Cut::has_feeder && warp == 0;
  if (feeds)
    for (unsigned step = 0; step < min(tile.chunks, stages); ++step) bring(step);
  auto columns = make_columns(tile);
  for (unsigned step = 0; step < tile.chunks; ++step) {
    gate::wait(&shared.filled[step % stages], step / stages);
    columns.take(shared.stage[step % stages], chunk_of(step));
    before_bulk_copies();
    gate::arrive(&shared.emptied[step % stages]);
    if (feeds && step + stages < tile.chunks) bring(step + stages);
  }
  columns.finish();
}

#endif

/// A block fills a processor. As few warps a block as find a processor each at once: they wait less for
/// shared memory; else as many as there can be, which share the images.
inline int warps_of_block(int V, int states) {
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for processors");
  for (const int warps : {2, 4})
    if (states * tiles_of(V, warps * warp_columns) <= processors) return warps;
  return V > 4 * warp_columns ? 8 : 4;
}

/// A block for each tile of each head of each sequence.
template <class Cut>
dim3 blocks_of(const DeviceProblem& p, const TensorCoreWork& work) {
  return dim3(static_cast<unsigned>(work.heads * work.sequence_count * tiles_of(p.V, Cut::columns)));
}
/// Calls body(cut). `fewest`: warps of a block; backwards two are not worth their kernels, nor are other cuts
/// than one where an image fills shared memory.
template <int width, int fewest, class Body>
void with_cut(const DeviceProblem& p, const TensorCoreWork& work, Body body) {
  if constexpr (width > narrow_tensor_core_key) {
    body(Cut<width, 4>{});
  } else {
    const int warps = warps_of_block(p.V, work.heads * work.sequence_count);
    if constexpr (fewest <= 2)
      if (warps == 2) return body(Cut<width, 2>{});
    if (warps <= 4) return body(Cut<width, 4>{});
    body(Cut<width, 8>{});
  }
}

}  // namespace kda_check::cuda

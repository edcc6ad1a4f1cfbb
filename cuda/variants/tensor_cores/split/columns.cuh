// Sixteen columns of a state, or of its gradient, that a warp has in registers, with split operands; and the
// images that come to shared memory, part by part: each makes room for the next chunk's as soon as all warps
// have had it.
#pragma once

#include <cstddef>

#include "cuda/variants/tensor_cores/columns.cuh"
#include "cuda/variants/tensor_cores/split/backward.cuh"

namespace kda_check::cuda {

/// What a block has of V: columns for so many warps. Another warp feeds them.
template <int width_, int warps_>
struct SplitCut {
  static constexpr int width = width_, warps = warps_, columns = warps * warp_columns,
                       threads = (warps + 1) * warp_lanes;
};

/// Bytes of an image.
struct ImagePart {
  unsigned from, to;
};

/// Parts: count, and of(part), in the order in which they are needed.
template <int width, class Parts>
struct SplitState {
  SplitImage<width> image;
  std::uint64_t filled[Parts::count];
  std::uint64_t emptied[Parts::count];  ///< as in StateShared
};

#ifdef KDA_CHECK_SM90

template <class Cut>
class SplitColumns : public StateColumns<Cut> {
 public:
  using Base = StateColumns<Cut>;
  using Base::Base;
  using Base::width, Base::channels, Base::rows;
  using Image = SplitImage<width>;
  using typename Base::Products;
  using Operand = SplitLeftFactor;

 protected:
  using Base::lane_, Base::p_, Base::S_, Base::tile_, Base::warp_, Base::work_;

  /// Nothing of a part is needed any more.
  template <class Shared>
  __device__ void leave(Shared& shared, int part) const {
    before_bulk_copies();
    gate::arrive(&shared.emptied[part]);
  }

  static __device__ void as_operand(const float (&first)[4], const float (&second)[4], Operand& operand) {
    split({first[0], first[1]}, operand, 0), split({first[2], first[3]}, operand, 1);
    split({second[0], second[1]}, operand, 2), split({second[2], second[3]}, operand, 3);
  }
  /// Blocks of an array of the image times x: onto the sums of tiles from 2 `first` on.
  template <bool transposed, int first, int blocks, class Number>
  __device__ void add(const Operand& x, const std::uint32_t* array, Number number, SplitSums<8>& sums) const {
    std::uint32_t b[2 * blocks][parts_of_number][2];
#pragma unroll
    for (int i = 0; i < blocks; ++i)
      load_right<transposed>(b, 2 * i, array + number(first + i) * split_block_words, lane_);
    sums.template add<true, 2 * first>(x, b);
  }

  /// sums += S^T keys^T, or, `transposed`, S^T keys, a channel a row of these.
  template <bool transposed>
  __device__ void multiply(const std::uint32_t* keys, SplitSums<rows>& sums) const {
#pragma unroll
    for (int k = 0; k < width / 16; ++k) {
      Operand h;
      as_operand(S_[2 * k], S_[2 * k + 1], h);
      const auto number = [k](int r) {
        return transposed ? k * Image::row_blocks + r : r * Image::key_blocks + k;
      };
      add<transposed, 0, 2>(h, keys, number, sums), add<transposed, 2, 2>(h, keys, number, sums);
    }
  }
  /// sums += x^T A^T; row i of A ends with its block of 16.
  __device__ void multiply_lower(const Products& x, const std::uint32_t* A, SplitSums<rows>& sums) const {
    add_lower<0>(x, A, sums), add_lower<1>(x, A, sums), add_lower<2>(x, A, sums), add_lower<3>(x, A, sums);
  }
  /// sums += x^T A
  __device__ void multiply_transposed_lower(const Products& x, const std::uint32_t* A,
                                            SplitSums<rows>& sums) const {
    add_transposed<0>(x, A, sums), add_transposed<1>(x, A, sums);
    add_transposed<2>(x, A, sums), add_transposed<3>(x, A, sums);
  }

  /// each(r, e, row, column) of the numbers that a lane has of its warp's columns and all rows.
  template <class Each>
  __device__ void each_value(Each each) const {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        each(r, e, 8 * r + 2 * (lane_ % 4) + e % 2, warp_ * warp_columns + lane_ / 4 + 8 * (e / 2));
  }
  using Stored = std::uint32_t[rows][4];
  /// Values of a chunk are on their way to the cache, a row of this warp's columns after the other.
  __device__ void announce_values(const Tensor& from, unsigned chunk) const {
    const int count = tile_.rows(chunk), column = warp_ * warp_columns;
    if (column >= tile_.columns) return;
    for (int row = lane_; row < count; row += warp_lanes)
      announce(from, tile_.row(p_, chunk, row) + column, min(warp_columns, tile_.columns - column));
  }
  /// Values as they are stored, anything where there is none.
  __device__ void fetch_values(const Tensor& of, Stored& v, unsigned chunk, int count) const {
    const std::size_t from = tile_.row(p_, chunk, 0);
    const unsigned stride = static_cast<unsigned>(p_.HV) * p_.V;
    const auto all = [&](auto element) {
      each_value([&](int r, int e, int row, int column) {
        v[r][e] = element(from + std::size_t{stride} * min(row, count - 1) + min(column, tile_.columns - 1));
      });
    };
    const void* const data = of.data;
    if (of.dtype == numeric::DType::fp64)
      all([=](std::size_t i) {
        return __float_as_uint(static_cast<float>(static_cast<const double*>(data)[i]));
      });
    else if (of.dtype == numeric::DType::fp32)
      all([=](std::size_t i) { return static_cast<const std::uint32_t*>(data)[i]; });
    else
      all([=](std::size_t i) { return static_cast<const std::uint16_t*>(data)[i]; });
  }
  /// x = change(value, x), 0 where there is none.
  template <class Change>
  __device__ void take_values(const Tensor& of, const Stored& v, int count, Products& x,
                              Change change) const {
    const auto all = [&](auto value) {
      each_value([&](int r, int e, int row, int column) {
        const bool is_there = row < count && column < tile_.columns;
        x[r][e] = is_there ? change(value(v[r][e]), x[r][e]) : 0.0f;
      });
    };
    if (of.dtype == numeric::DType::bf16)
      all([](std::uint32_t bits) { return Pair<numeric::DType::bf16>::first(bits); });
    else if (of.dtype == numeric::DType::fp16)
      all([](std::uint32_t bits) { return Pair<numeric::DType::fp16>::first(bits); });
    else
      all([](std::uint32_t bits) { return __uint_as_float(bits); });
  }
  /// Rows times beta.
  __device__ void weigh(const Image& image, Products& x) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float2 beta = *reinterpret_cast<const float2*>(image.beta + 8 * r + 2 * (lane_ % 4));
      x[r][0] = x[r][0] * beta.x, x[r][1] = x[r][1] * beta.y;
      x[r][2] = x[r][2] * beta.x, x[r][3] = x[r][3] * beta.y;
    }
  }
  __device__ void hand_out(const Products& o, unsigned chunk, int count, const MutableTensor& out) const {
    const std::size_t to = tile_.row(p_, chunk, 0);
    const unsigned stride = static_cast<unsigned>(p_.HV) * p_.V;
    const auto all = [&](auto keep) {
      each_value([&](int r, int e, int row, int column) {
        if (row < count && column < tile_.columns) keep(o[r][e], to + std::size_t{stride} * row + column);
      });
    };
    void* const data = out.data;
    const auto narrow = [=](auto format) {
      return [=](float x, std::size_t i) {
        static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(Pair<format>::of(x, 0.0f));
      };
    };
    using numeric::DType;
    if (out.dtype == DType::bf16)
      all(narrow(std::integral_constant<DType, DType::bf16>{}));
    else if (out.dtype == DType::fp16)
      all(narrow(std::integral_constant<DType, DType::fp16>{}));
    else if (out.dtype == DType::fp32)
      all([=](float x, std::size_t i) { static_cast<float*>(data)[i] = x; });
    else
      all([=](float x, std::size_t i) { static_cast<double*>(data)[i] = static_cast<double>(x); });
  }

  /// This warp's columns of eights of rows into blocks of an array of a chunk.
  template <int eights>
  __device__ void leave_blocks(const float (&x)[eights][4], float* array) const {
    const int blocks = value_blocks(p_.V), block = tile_.first_column / 16 + warp_;
    if (block >= blocks) return;
#pragma unroll
    for (int r = 0; r < eights; ++r)
      leave_turned(array + (r / 2 * blocks + block) * numbers_of_block + r % 2 * numbers_of_block / 2, lane_,
                   {x[r][0], x[r][1]}, {x[r][2], x[r][3]});
  }

 private:
  /// ... of 16 rows of x.
  template <int k>
  __device__ void add_lower(const Products& x, const std::uint32_t* A, SplitSums<rows>& sums) const {
    Operand operand;
    as_operand(x[2 * k], x[2 * k + 1], operand);
    const auto number = [](int r) { return lower_number(r, k); };
    if constexpr (k % 2 == 1) add<false, k, 1>(operand, A, number, sums);
    if constexpr (k == 0) add<false, 0, 2>(operand, A, number, sums);
    if constexpr (k < 3) add<false, 2, 2>(operand, A, number, sums);
  }
  template <int k>
  __device__ void add_transposed(const Products& x, const std::uint32_t* A, SplitSums<rows>& sums) const {
    Operand operand;
    as_operand(x[2 * k], x[2 * k + 1], operand);
    const auto number = [](int c) { return lower_number(k, c); };
    if constexpr (k == 0) add<true, 0, 1>(operand, A, number, sums);
    if constexpr (k > 0) add<true, 0, 2>(operand, A, number, sums);
    if constexpr (k == 2) add<true, 2, 1>(operand, A, number, sums);
    if constexpr (k == 3) add<true, 2, 2>(operand, A, number, sums);
  }
};

/// Chunk after chunk, or from the last one on, into shared memory, part by part: by one thread.
template <int width, class Parts>
__device__ void feed(const TensorCoreWork& work, const Tile& tile, bool from_the_end,
                     SplitState<width, Parts>& shared) {
  using Image = SplitImage<width>;
  const auto* const images = reinterpret_cast<const Image*>(work.images);
  for (unsigned step = 0; step < tile.chunks; ++step) {
    const unsigned chunk = from_the_end ? tile.chunks - 1 - step : step;
    const auto* const from = reinterpret_cast<const unsigned char*>(
        images + std::size_t{tile.first_chunk + chunk} * work.heads + tile.local);
    auto* const to = reinterpret_cast<unsigned char*>(&shared.image);
    for (int number = 0; number < Parts::count; ++number) {
      const ImagePart part = Parts::of(number);
      if (step > 0) gate::wait(&shared.emptied[number], step - 1);
      gate::arrive_expecting(&shared.filled[number], part.to - part.from);
      begin_load(to + part.from, from + part.from, part.to - part.from, &shared.filled[number]);
    }
  }
}

/// The chunks of a tile through columns(tile), which take(shared, chunk, step) and finish().
template <class Cut, class Parts, class Make>
__device__ void take_split_chunks(const DeviceProblem& p, const TensorCoreWork& work, bool from_the_end,
                                  unsigned char* memory, Make make) {
  auto& shared = *reinterpret_cast<SplitState<Cut::width, Parts>*>(memory);
  if (threadIdx.x == 0)
    for (int i = 0; i < Parts::count; ++i)
      gate::make(&shared.filled[i], 1), gate::make(&shared.emptied[i], Cut::warps * warp_lanes);
  gate::make_known();
  before_bulk_copies();
  __syncthreads();
  const Tile tile(p, work, Cut::columns);
  if (threadIdx.x >= Cut::warps * warp_lanes) {
    if (threadIdx.x == Cut::warps * warp_lanes) feed(work, tile, from_the_end, shared);
    return;
  }
  auto columns = make(tile);
  for (unsigned step = 0; step < tile.chunks; ++step)
    columns.take(shared, from_the_end ? tile.chunks - 1 - step : step, step);
  columns.finish();
}

#endif

/// Launches it for a cut of V.
template <class Parts, class Cut>
constexpr std::size_t split_state_bytes = sizeof(SplitState<Cut::width, Parts>);
template <class Cut>
dim3 split_blocks_of(const DeviceProblem& p, const TensorCoreWork& work) {
  return dim3(static_cast<unsigned>(work.heads * work.sequence_count * tiles_of(p.V, Cut::columns)));
}

}  // namespace kda_check::cuda

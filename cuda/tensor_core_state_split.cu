// The state from chunk to chunk in fp32 on tensor cores, v_new and o (F8 to F11): as tensor_core_state.cu,
// but operands are split in three. One image at a time is in shared memory; each piece of it makes room for
// the next chunk's as soon as all warps have had it.
#include "launch.cuh"
#include "tensor_core_columns.cuh"
#include "tensor_core_split.cuh"

namespace kda_check::cuda {

namespace {

/// What a block has of V: columns for so many warps. Another warp feeds them.
template <int width_, int warps_>
struct SplitCut {
  static constexpr int width = width_, warps = warps_, columns = warps * warp_columns,
                       threads = (warps + 1) * warp_lanes;
};

template <int width>
struct SplitState {
  SplitImage<width> image;
  std::uint64_t filled[SplitImage<width>::pieces];
  std::uint64_t emptied[SplitImage<width>::pieces];  ///< as in StateShared
};

#ifdef KDA_CHECK_SM90

template <class Cut, bool tells>
class SplitColumns : public StateColumns<Cut> {
 public:
  using Base = StateColumns<Cut>;
  using Base::Base;
  using Base::width, Base::channels, Base::rows;
  using Image = SplitImage<width>;
  using typename Base::Products;
  using Operand = std::uint32_t[parts_of_number][4];

  __device__ void take(SplitState<width>& shared, unsigned chunk) {
    const Image& image = shared.image;
    const int count = tile_.rows(chunk);
    if constexpr (tells) tell_state(chunk);
    Products writes;
    std::uint32_t v[rows][4];
    if (chunk + 1 < tile_.chunks) announce_values(chunk + 1);
    gate::wait(&shared.filled[0], chunk);
    {
      SplitSums<rows> sums;
      multiply(image.k_start, sums);
      sums.finish(writes);
    }
    fetch_values(v, chunk, count);
    if constexpr (tells) tell_operands(image, v, chunk, count);
    subtract(image, v, count, writes);
    {
      SplitSums<rows> sums;
      multiply_lower(writes, image.Akk_inv, sums);
      sums.finish(writes);
    }
    leave(shared, 0);
    if constexpr (tells)
      this->each_product(writes, chunk, tile_.first_column + warp_ * warp_columns, p_.V,
                         [this](float x, std::size_t at) { work_.stages.v_new[at] = x; });
    gate::wait(&shared.filled[1], chunk);
    {
      SplitSums<rows> from_state, sums;
      multiply(image.q_start, from_state);
      from_state.finish(sums.high);
      const float scale = static_cast<float>(p_.scale);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (float& x : sums.high[r]) x = scale * x;
      multiply_lower(writes, image.Aqk, sums);
      Products o;
      sums.finish(o);
      leave(shared, 1);
      hand_out(o, chunk, count);
    }
    gate::wait(&shared.filled[2], chunk);
    update(image, writes);
    leave(shared, 2);
  }

 private:
  using Base::lane_, Base::p_, Base::S_, Base::tile_, Base::warp_, Base::work_;

  /// Nothing of a piece is needed any more.
  __device__ void leave(SplitState<width>& shared, int piece) const {
    before_bulk_copies();
    gate::arrive(&shared.emptied[piece]);
  }

  // Stages, for those who ask.
  __device__ void tell_state(unsigned chunk) {
    float* const h = work_.stages.h + work_.state(tile_.first_chunk + chunk, tile_.local, p_);
    this->each_element([&](float& x, int k, int v, bool is_there) {
      if (is_there) h[std::size_t(k) * p_.V + v] = x;
    });
  }
  /// u, and, beside the first columns of V, w: the inverse times beta v and beta k exp(G).
  __device__ void tell_operands(const Image& image, const std::uint32_t (&v)[rows][4], unsigned chunk,
                                int count) const {
    const auto solve = [&](Products& x) {
      SplitSums<rows> sums;
      multiply_lower(x, image.Akk_inv, sums);
      sums.finish(x);
    };
    {
      Products u{};
      subtract(image, v, count, u);
      solve(u);
      this->each_product(u, chunk, tile_.first_column + warp_ * warp_columns, p_.V,
                         [this](float x, std::size_t at) { work_.stages.u[at] = x; });
    }
    if (tile_.first_column > 0) return;
    for (int first = warp_ * warp_columns; first < p_.K; first += Cut::columns) {
      Products w{};
      this->each_product(w, chunk, first, p_.K, [this](float& x, std::size_t at) { x = work_.stages.w[at]; });
      solve(w);
      this->each_product(w, chunk, first, p_.K, [this](float x, std::size_t at) { work_.stages.w[at] = x; });
    }
  }

  static __device__ void as_operand(const float (&first)[4], const float (&second)[4], Operand& operand) {
    split({first[0], first[1]}, operand, 0), split({first[2], first[3]}, operand, 1);
    split({second[0], second[1]}, operand, 2), split({second[2], second[3]}, operand, 3);
  }
  /// Blocks of an array of the image times x: onto the sums of tiles from 2 `first` on.
  template <int first, int blocks, class Number>
  __device__ void add(const Operand& x, const std::uint32_t* array, Number number, SplitSums<8>& sums) const {
    std::uint32_t b[2 * blocks][parts_of_number][2];
#pragma unroll
    for (int i = 0; i < blocks; ++i)
#pragma unroll
      for (int p = 0; p < parts_of_number; ++p) {
        const uint4 four = *reinterpret_cast<const uint4*>(array + number(first + i) * split_block_words +
                                                           p * part_words + 4 * lane_);
        b[2 * i][p][0] = four.x, b[2 * i][p][1] = four.y;
        b[2 * i + 1][p][0] = four.z, b[2 * i + 1][p][1] = four.w;
      }
    sums.template add<true, 2 * first>(x, b);
  }

  /// sums += h^T keys^T
  __device__ void multiply(const std::uint32_t* keys, SplitSums<rows>& sums) const {
#pragma unroll
    for (int k = 0; k < width / 16; ++k) {
      Operand h;
      as_operand(S_[2 * k], S_[2 * k + 1], h);
      const auto number = [k](int r) { return r * Image::key_blocks + k; };
      add<0, 2>(h, keys, number, sums), add<2, 2>(h, keys, number, sums);
    }
  }
  /// sums += x^T A^T; row i of A ends with its block of 16.
  __device__ void multiply_lower(const Products& x, const std::uint32_t* A, SplitSums<rows>& sums) const {
    add_lower<0>(x, A, sums), add_lower<1>(x, A, sums), add_lower<2>(x, A, sums), add_lower<3>(x, A, sums);
  }
  /// ... of 16 rows of x.
  template <int k>
  __device__ void add_lower(const Products& x, const std::uint32_t* A, SplitSums<rows>& sums) const {
    Operand operand;
    as_operand(x[2 * k], x[2 * k + 1], operand);
    const auto number = [](int r) { return lower_number(r, k); };
    if constexpr (k % 2 == 1) add<k, 1>(operand, A, number, sums);
    if constexpr (k == 0) add<0, 2>(operand, A, number, sums);
    if constexpr (k < 3) add<2, 2>(operand, A, number, sums);
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
  /// v is on its way to the cache, a row of this warp's columns after the other.
  __device__ void announce_values(unsigned chunk) const {
    const int count = tile_.rows(chunk), column = warp_ * warp_columns;
    if (column >= tile_.columns) return;
    for (int row = lane_; row < count; row += warp_lanes)
      announce(p_.v, tile_.row(p_, chunk, row) + column, min(warp_columns, tile_.columns - column));
  }
  /// v as it is stored, anything where there is none.
  __device__ void fetch_values(std::uint32_t (&v)[rows][4], unsigned chunk, int count) const {
    const std::size_t from = tile_.row(p_, chunk, 0);
    const unsigned stride = static_cast<unsigned>(p_.HV) * p_.V;
    const auto all = [&](auto element) {
      each_value([&](int r, int e, int row, int column) {
        v[r][e] = element(from + std::size_t{stride} * min(row, count - 1) + min(column, tile_.columns - 1));
      });
    };
    const void* const data = p_.v.data;
    if (p_.v.dtype == numeric::DType::fp64)
      all([=](std::size_t i) {
        return __float_as_uint(static_cast<float>(static_cast<const double*>(data)[i]));
      });
    else if (p_.v.dtype == numeric::DType::fp32)
      all([=](std::size_t i) { return static_cast<const std::uint32_t*>(data)[i]; });
    else
      all([=](std::size_t i) { return static_cast<const std::uint16_t*>(data)[i]; });
  }
  /// x = (v - x) beta
  __device__ void subtract(const Image& image, const std::uint32_t (&v)[rows][4], int count,
                           Products& x) const {
    const auto all = [&](auto value) {
      each_value([&](int r, int e, int row, int column) {
        const bool is_there = row < count && column < tile_.columns;
        x[r][e] = is_there ? (value(v[r][e]) - x[r][e]) * image.beta[row] : 0.0f;
      });
    };
    if (p_.v.dtype == numeric::DType::bf16)
      all([](std::uint32_t bits) { return Pair<numeric::DType::bf16>::first(bits); });
    else if (p_.v.dtype == numeric::DType::fp16)
      all([](std::uint32_t bits) { return Pair<numeric::DType::fp16>::first(bits); });
    else
      all([](std::uint32_t bits) { return __uint_as_float(bits); });
  }
  __device__ void hand_out(const Products& o, unsigned chunk, int count) const {
    const std::size_t to = tile_.row(p_, chunk, 0);
    const unsigned stride = static_cast<unsigned>(p_.HV) * p_.V;
    const auto all = [&](auto keep) {
      each_value([&](int r, int e, int row, int column) {
        if (row < count && column < tile_.columns) keep(o[r][e], to + std::size_t{stride} * row + column);
      });
    };
    void* const data = p_.o.data;
    const auto narrow = [=](auto format) {
      return [=](float x, std::size_t i) {
        static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(Pair<format>::of(x, 0.0f));
      };
    };
    using numeric::DType;
    if (p_.o.dtype == DType::bf16)
      all(narrow(std::integral_constant<DType, DType::bf16>{}));
    else if (p_.o.dtype == DType::fp16)
      all(narrow(std::integral_constant<DType, DType::fp16>{}));
    else
      all([=](float x, std::size_t i) { static_cast<float*>(data)[i] = x; });
  }
  /// S = decay S + k_end^T v_new
  __device__ void update(const Image& image, const Products& v_new) {
    constexpr int together = 8;
#pragma unroll
    for (int first = 0; first < channels; first += together) {
      SplitSums<together> sums;
#pragma unroll
      for (int k = 0; k < rows / 2; ++k) {
        Operand x;
        as_operand(v_new[2 * k], v_new[2 * k + 1], x);
        const auto number = [=](int n) { return (first / 2 + n) * Image::row_blocks + k; };
        add<0, 2>(x, image.k_end, number, sums), add<2, 2>(x, image.k_end, number, sums);
      }
      float writes[together][4];
      sums.finish(writes);
#pragma unroll
      for (int n = 0; n < together; ++n) {
        const float2 decay =
            *reinterpret_cast<const float2*>(image.decay + 8 * (first + n) + 2 * (lane_ % 4));
        float(&S)[4] = S_[first + n];
        S[0] = fmaf(S[0], decay.x, writes[n][0]), S[1] = fmaf(S[1], decay.y, writes[n][1]);
        S[2] = fmaf(S[2], decay.x, writes[n][2]), S[3] = fmaf(S[3], decay.y, writes[n][3]);
      }
    }
  }
};

/// Chunk after chunk into shared memory, piece by piece: by one thread.
template <int width>
__device__ void feed(const TensorCoreWork& work, const Tile& tile, SplitState<width>& shared) {
  using Image = SplitImage<width>;
  const auto* const images = reinterpret_cast<const Image*>(work.images);
  for (unsigned c = 0; c < tile.chunks; ++c) {
    const auto* from = reinterpret_cast<const unsigned char*>(
        images + std::size_t{tile.first_chunk + c} * work.heads + tile.local);
    auto* to = reinterpret_cast<unsigned char*>(&shared.image);
    for (int piece = 0; piece < Image::pieces; ++piece) {
      const unsigned bytes = Image::piece_bytes(piece);
      if (c > 0) gate::wait(&shared.emptied[piece], c - 1);
      gate::arrive_expecting(&shared.filled[piece], bytes);
      begin_load(to, from, bytes, &shared.filled[piece]);
      to += bytes, from += bytes;
    }
  }
}

#endif

template <class Cut, bool tells>
__global__ void __launch_bounds__(Cut::threads, 1)
    split_state(const __grid_constant__ DeviceProblem p, const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<SplitState<Cut::width>*>(memory);
  if (threadIdx.x == 0)
    for (int i = 0; i < SplitImage<Cut::width>::pieces; ++i)
      gate::make(&shared.filled[i], 1), gate::make(&shared.emptied[i], Cut::warps * warp_lanes);
  gate::make_known();
  before_bulk_copies();
  __syncthreads();
  const Tile tile(p, work, Cut::columns);
  if (threadIdx.x >= Cut::warps * warp_lanes) {
    if (threadIdx.x == Cut::warps * warp_lanes) feed<Cut::width>(work, tile, shared);
    return;
  }
  SplitColumns<Cut, tells> columns(p, work, tile, p.initial_state);
  for (unsigned c = 0; c < tile.chunks; ++c) columns.take(shared, c);
  columns.store(p.final_state);
#endif
}

}  // namespace

void launch_split_state(const DeviceProblem& p, const TensorCoreWork& work) {
  const int states = work.heads * work.sequence_count;
  const auto launch_cut = [&](auto cut, auto tells) {
    using Cut = decltype(cut);
    launch("gpu-chunk on tensor cores in fp32, state", split_state<Cut, tells>,
           dim3(static_cast<unsigned>(states * tiles_of(p.V, Cut::columns))), Cut::threads,
           sizeof(SplitState<Cut::width>), p, work);
  };
  for_width<narrow_tensor_core_key>(p.K, [&](auto width) {
    if (work.stages.h != nullptr) return launch_cut(SplitCut<width, 4>{}, std::true_type{});
    launch_cut(SplitCut<width, 4>{}, std::false_type{});
  });
}

}  // namespace kda_check::cuda

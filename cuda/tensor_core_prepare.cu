// What a chunk of a head is to its state: norms, gates, scores, the inverse and operands (F1 to F4, F7), with
// the scores and the inverse on tensor cores. A block a chunk, two blocks a processor, all of it in shared
// memory.
#include "launch.cuh"
#include "tensor_core_scores.cuh"

namespace kda_check::cuda {

namespace {

#ifdef KDA_CHECK_SM90

template <DType dtype, int width>
class Preparation : public ChunkScores<dtype, width> {
 public:
  using Scores = ChunkScores<dtype, width>;
  using Scores::Scores;
  using typename Scores::Image, typename Scores::Words;

  template <bool by_pairs>
  __device__ void all() {
    this->begin_keys(p_.k, s_.image.k_start), this->begin_keys(p_.q, s_.image.q_start);
    this->log_decays();
    this->strengths();
    wait_for_copies();
    __syncthreads();
    this->sums_and_norms();
    __syncthreads();
    this->template scores<by_pairs>();
    __syncthreads();
    if (thread_ < inverting_threads) {
      auto* const merged = reinterpret_cast<float*>(s_.image.Akk_inv);
      static_assert(6 * block_words * sizeof(float) <= sizeof(s_.image.Akk_inv));
      invert_chunk(s_.L, merged, warp_, lane_);
      store_inverse(merged);
    } else {
      operands();
    }
    before_bulk_copies();
    __syncthreads();
    if (thread_ == 0)
      store_all(reinterpret_cast<Image*>(work_.images) + chunk_.chunk * work_.heads + chunk_.local, &s_.image,
                sizeof(Image));
  }

 private:
  using Scores::chunk_, Scores::lane_, Scores::p_, Scores::s_, Scores::thread_, Scores::warp_, Scores::work_;
  using Scores::G, Scores::pair, Scores::pairs;
  /// qg, k 2^G and kg where q and k were.
  __device__ void operands() const {
    constexpr int rows_together = (preparing_threads - inverting_threads) / pairs;
    const int k = (thread_ - inverting_threads) % pairs * 2;
    const float2 last = G(chunk_.rows - 1, k);
#pragma unroll 4
    for (int row = (thread_ - inverting_threads) / pairs; row < image_rows; row += rows_together) {
      const float2 sum = G(row, k), decay{ex2_ftz(sum.x), ex2_ftz(sum.y)};
      std::uint32_t &q = pair(s_.image.q_start, row, k), &key = pair(s_.image.k_start, row, k);
      const float q_norm = s_.q_norm[row], k_norm = s_.k_norm[row];
      const float2 y{Words::first(key) * k_norm, Words::second(key) * k_norm};
      q = Words::of(Words::first(q) * q_norm * decay.x, Words::second(q) * q_norm * decay.y);
      key = Words::of(y.x * decay.x, y.y * decay.y);
      pair(s_.image.k_end, row, k) = Words::of(y.x * ex2_ftz(last.x - sum.x), y.y * ex2_ftz(last.y - sum.y));
    }
  }

  /// The inverse into its place, where its merged blocks are: two columns at a time. And what of Aqk is above
  /// the diagonal's blocks.
  __device__ void store_inverse(float* merged) const {
    constexpr int rows_together = inverting_threads / (image_rows / 2), mine = image_rows / rows_together;
    const int column = thread_ % (image_rows / 2) * 2, j = column / score_rows;
    const auto each = [&](auto use) {
#pragma unroll
      for (int n = 0; n < mine; ++n) use(n, thread_ / (image_rows / 2) + n * rows_together);
    };
    std::uint32_t words[mine];
    each([&](int n, int row) {
      const int i = row / score_rows;
      words[n] = 0;
      if (j > i) return;
      const float* const block = i == j ? lower_block(s_.L, i, i) : merged_block(merged, i, j);
      const float2 x =
          *reinterpret_cast<const float2*>(block + row % score_rows * block_row + column % score_rows);
      words[n] = Words::of(x.x, x.y);
    });
    inverting_barrier();
    each([&](int n, int row) {
      const int at = Image::template at<image_rows>(row, column);
      *reinterpret_cast<std::uint32_t*>(s_.image.Akk_inv + at) = words[n];
      if (j > row / score_rows) *reinterpret_cast<std::uint32_t*>(s_.image.Aqk + at) = 0;
    });
  }
};

#endif

template <DType dtype, int width, bool by_pairs>
__global__ void __launch_bounds__(preparing_threads, 2)
    prepare_chunks(const __grid_constant__ DeviceProblem p, const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  Preparation<dtype, width>(p, work, *reinterpret_cast<PrepareShared<width>*>(memory))
      .template all<by_pairs>();
#endif
}

}  // namespace

void launch_tensor_core_prepare(const DeviceProblem& p, const TensorCoreWork& work) {
  for_operands(p.q.dtype, p.K, [&](auto dtype, auto width) {
    launch("gpu-chunk on tensor cores, chunks",
           work.decay == DecayForm::anchor_pair ? prepare_chunks<dtype, width, true>
                                                : prepare_chunks<dtype, width, false>,
           dim3(static_cast<unsigned>(work.chunk_count) * static_cast<unsigned>(work.heads)),
           preparing_threads, sizeof(PrepareShared<width>), p, work);
  });
}

}  // namespace kda_check::cuda

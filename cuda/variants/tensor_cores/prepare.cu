// What a chunk of a head is to its state: norms, gates, scores, the inverse and operands (F1 to F4, F7), with
// the scores and the inverse on tensor cores. A block a chunk, two blocks a processor, all of it in shared
// memory.
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/scores.cuh"

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
    this->begin_keys();
    this->log_decays();
    this->strengths();
    wait_for_copies();
    __syncthreads();
    this->sums_and_norms();
    __syncthreads();
    const bool tells = work_.stages.G != nullptr;
    if (tells) tell_sums();
    const bool leaves = work_.left.G != nullptr;
    if (leaves) leave_norms();
    this->template scores<by_pairs>();
    before_bulk_copies();
    __syncthreads();
    Image* const image = reinterpret_cast<Image*>(work_.images) + chunk_.chunk * work_.heads + chunk_.local;
    constexpr unsigned bytes_of_operands = 3 * sizeof(s_.image.q_start);
    if (thread_ < inverting_threads) {
      auto* const merged = reinterpret_cast<float*>(s_.image.Akk_inv);
      static_assert(6 * block_words * sizeof(float) <= sizeof(s_.image.Akk_inv));
      invert_chunk(s_.L, merged, warp_, lane_);
      store_inverse(merged);
      before_bulk_copies();
      inverting_barrier();
      if (thread_ == 0) store_all(image->Akk_inv, s_.image.Akk_inv, sizeof(Image) - bytes_of_operands);
    } else {
      operands();
      before_bulk_copies();
      asm volatile("bar.sync 2, %0;" ::"n"(preparing_threads - inverting_threads) : "memory");
      if (thread_ == inverting_threads) {
        store_all(image, &s_.image, bytes_of_operands);
        const std::size_t number = chunk_.chunk * work_.heads + chunk_.local;
        if (leaves) store_all(work_.left.G + number * image_rows * width, s_.G, sizeof(s_.G));
      }
    }
    if (!tells) return;
    __syncthreads();
    tell_image();
  }

 private:
  using Scores::chunk_, Scores::lane_, Scores::p_, Scores::s_, Scores::thread_, Scores::warp_, Scores::work_;
  using Scores::G, Scores::pair, Scores::pairs;
  /// Stages, for those who ask: each(row, column, element in [tokens][heads][columns]).
  template <class Each>
  __device__ void each_of_stage(int columns, Each each) const {
    for (int e = thread_; e < chunk_.rows * columns; e += preparing_threads) {
      const int row = e / columns, column = e % columns;
      each(row, column, work_.row(chunk_.token + row, chunk_.local) * columns + column);
    }
  }
  __device__ void tell_sums() const {
    each_of_stage(p_.K, [this](int row, int k, std::size_t at) {
      const float sum = s_.G[PrepareShared<width>::gate_at(row, k)];
      const float key = Words::first(s_.image.k_start[Image::template at<width>(row, k)]) * s_.k_norm[row];
      work_.stages.G[at] = sum;
      work_.stages.w[at] = rounded(key * s_.image.beta[row] * ex2_ftz(sum));
    });
  }
  __device__ void tell_image() const {
    each_of_stage(p_.K, [this](int row, int k, std::size_t at) {
      const int from = Image::template at<width>(row, k);
      work_.stages.qg[at] = Words::first(s_.image.q_start[from]);
      work_.stages.kg[at] = Words::first(s_.image.k_end[from]);
    });
    each_of_stage(image_rows, [this](int row, int column, std::size_t at) {
      const int from = Image::template at<image_rows>(row, column);
      work_.stages.Aqk[at] = Words::first(s_.image.Aqk[from]);
      work_.stages.Akk_inv[at] = Words::first(s_.image.Akk_inv[from]);
    });
  }
  static __device__ float rounded(float x) { return Words::first(Words::of(x, 0.0f)); }
  /// For the backward pass.
  __device__ void leave_norms() const {
    if (thread_ >= chunk_.rows) return;
    const std::size_t at = work_.row(chunk_.token + thread_, chunk_.local);
    work_.left.q_norm[at] = s_.q_norm[thread_], work_.left.k_norm[at] = s_.k_norm[thread_];
  }

  /// qg, k 2^G and kg where q and k were.
  __device__ void operands() const {
    constexpr int threads = preparing_threads - inverting_threads, together = threads / pairs, rows = 8;
    const int thread = thread_ - inverting_threads, k = thread % pairs * 2;
    if (threads % pairs != 0 && thread >= together * pairs) return;
    const float2 last = G(chunk_.rows - 1, k);
    for (int top = thread / pairs * rows; top < image_rows; top += rows * together)
#pragma unroll
      for (int row = top; row < top + rows; ++row) {
        const float2 sum = G(row, k), decay{ex2_ftz(sum.x), ex2_ftz(sum.y)};
        std::uint32_t &q = pair(s_.image.q_start, row, k), &key = pair(s_.image.k_start, row, k);
        const float q_norm = s_.q_norm[row], k_norm = s_.k_norm[row];
        const float2 y{Words::first(key) * k_norm, Words::second(key) * k_norm};
        q = Words::of(Words::first(q) * q_norm * decay.x, Words::second(q) * q_norm * decay.y);
        key = Words::of(y.x * decay.x, y.y * decay.y);
        pair(s_.image.k_end, row, k) =
            Words::of(y.x * ex2_ftz(last.x - sum.x), y.y * ex2_ftz(last.y - sum.y));
      }
  }

  /// The inverse into its place, where its merged blocks are: two columns at a time. And what of Aqk is above
  /// the diagonal's blocks.
  __device__ void store_inverse(float* merged) const {
    constexpr int rows_together = inverting_threads / (image_rows / 2), mine = image_rows / rows_together;
    static_assert(score_rows % rows_together == 0);
    const int column = lane_ * 2, j = column / score_rows;
    std::uint32_t words[mine];
#pragma unroll
    for (int n = 0; n < mine; ++n) {
      const int i = n * rows_together / score_rows, row = n * rows_together % score_rows + warp_;
      words[n] = 0;
      if (j > i) continue;
      const float* const block = i == j ? lower_block(s_.L, i, i) : merged_block(merged, i, j);
      const float2 x = *reinterpret_cast<const float2*>(block + row * block_row + column % score_rows);
      words[n] = Words::of(x.x, x.y);
    }
    inverting_barrier();
#pragma unroll
    for (int n = 0; n < mine; ++n) {
      const int i = n * rows_together / score_rows, row = n * rows_together + warp_;
      this->template pair<image_rows>(s_.image.Akk_inv, row, column) = words[n];
      if (j > i) this->template pair<image_rows>(s_.image.Aqk, row, column) = 0;
    }
  }
};

#endif

template <DType dtype, int width, bool by_pairs>
__global__ void __launch_bounds__(preparing_threads, width > narrow_tensor_core_key ? 1 : 2)
    prepare_chunks(const __grid_constant__ DeviceProblem p, const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  Preparation<dtype, width>(p, work, *reinterpret_cast<PrepareShared<width>*>(memory))
      .template all<by_pairs>();
#endif
}

}  // namespace

void launch_tensor_core_prepare(const DeviceProblem& p, const TensorCoreWork& work) {
  for_operands<widest_tensor_core_key>(p.q.dtype, p.K, [&](auto dtype, auto width) {
    launch("gpu-chunk on tensor cores, chunks",
           work.decay == DecayForm::anchor_pair ? prepare_chunks<dtype, width, true>
                                                : prepare_chunks<dtype, width, false>,
           dim3(static_cast<unsigned>(work.chunk_count) * static_cast<unsigned>(work.heads)),
           preparing_threads, sizeof(PrepareShared<width>), p, work);
  });
}

}  // namespace kda_check::cuda

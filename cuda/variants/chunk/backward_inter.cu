// What goes through the states (B3): dq = scale e^G (do h^T), dk = e^(Gn - G) (v_new dh^T), dw = -dv h^T. A
// block computes 64 channels of all three. One more has dAqk = scale tril(do v_new^T) (B1), which reads what
// its neighbours read.
#include "cuda/device/device.hpp"
#include "cuda/variants/chunk/backward.cuh"

namespace kda_check::cuda {

namespace {

/// The tiles of one product, or of two with the same right factor.
template <class T>
struct InterTiles {
  RowTiles<T> rows;  ///< do and dv, or v_new
  alignas(16) T state[tile_side][tile_stride<T>];
};

template <class T, bool is_fused>
class InterGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;

 public:
  /// `staged`: `stages` of them.
  __device__ InterGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work, InterTiles<T>* staged,
                            int stages)
      : Base(p, work, blocks(p)), staged_(staged), stages_(stages) {}

  __host__ __device__ static int blocks(const DeviceProblem& p) { return tiles_of(p.K) + 1; }
  __device__ void run() {
    if (this->block_ + 1 == blocks(p_)) return scores();
    const int first = this->block_ * tile_side;
    TileSums<T> dq = {}, dk = {}, dw = {};
    const auto column = [](int step) { return step / 2 * tile_side; };
    over_steps(
        2 * tiles_of(p_.V),
        [&](InterTiles<T>& to, int step) {
          const int v = column(step);
          const bool of_output = step % 2 == 0;
          this->fetch_state(to.state[0], of_output ? forward_.h : work_.dh, first, v);
          this->fetch(to.rows.left[0], of_output ? work_.d_o : forward_.v_new, v, p_.V);
          if (of_output) this->fetch(to.rows.right[0], work_.dv, v, p_.V);
        },
        [&](const InterTiles<T>& from, int step) {
          const int depth = min(tile_side, p_.V - column(step));
          if (step % 2 == 0) {
            add(dq, from.rows.left[0], from.state[0], depth);
            add(dw, from.rows.right[0], from.state[0], depth);
          } else {
            add(dk, from.rows.left[0], from.state[0], depth);
          }
        });
    const TilePlace place;
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = place.row(r), k = first + place.apart_column(c);
        if (i < chunk_.rows && k < p_.K) write(i, k, dq[r][c], dk[r][c], dw[r][c]);
      }
  }

 private:
  /// fetch(staged, step), and when it is there, multiply(staged, step).
  template <class Fetch, class Multiply>
  __device__ void over_steps(int steps, Fetch fetch, Multiply multiply) const {
    const auto fetch_next = [&](int step) {
      if (step < steps) fetch(staged_[step % stages_], step);
    };
    fetch_next(0);
    for (int step = 0; step < steps; ++step) {
      this->arrive();
      if (stages_ > 1) fetch_next(step + 1);
      multiply(staged_[step % stages_], step);
      if (stages_ > 1) continue;
      __syncthreads();
      fetch_next(step + 1);
    }
  }
  __device__ static void add(TileSums<T>& sums, const T* rows, const T* columns, int depth) {
    add_product_of_rows<is_fused>(sums, rows, tile_stride<T>, columns, tile_stride<T>, depth);
  }

  __device__ void scores() {
    TileSums<T> sums = {};
    over_steps(
        tiles_of(p_.V),
        [&](InterTiles<T>& to, int step) {
          this->fetch(to.rows.left[0], work_.d_o, step * tile_side, p_.V);
          this->fetch(to.rows.right[0], forward_.v_new, step * tile_side, p_.V);
        },
        [&](const InterTiles<T>& from, int step) {
          add(sums, from.rows.left[0], from.rows.right[0], min(tile_side, p_.V - step * tile_side));
        });
    const TilePlace place;
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = place.row(r), j = place.apart_column(c);
        if (i < chunk_.rows && j < forward_.C)
          chunk_.row(work_.dAqk, i, forward_.C)[j] = j <= i ? T(p_.scale) * sums[r][c] : T(0);
      }
  }
  __device__ void write(int i, int k, T dq, T dk, T dw) const {
    const T G = this->G(i, k), tail = forward_.tail != nullptr ? chunk_.row(forward_.tail, i, p_.K)[k]
                                                               : this->G(chunk_.rows - 1, k) - G;  // Gn - G
    chunk_.row(work_.dq, i, p_.K)[k] = T(p_.scale) * (dq * this->exponential_of(G));
    chunk_.row(work_.dk, i, p_.K)[k] = dk * this->exponential_of(tail);
    chunk_.row(work_.dw, i, p_.K)[k] = kda::rounded(p_.casts.dw, -dw);
  }

  InterTiles<T>* const staged_;
  const int stages_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads, sizeof(T) == sizeof(float) ? 2 : 1)
    inter_gradients(const __grid_constant__ DeviceProblem p,
                    const __grid_constant__ ChunkBackwardWork<T> work, int stages) {
  extern __shared__ __align__(16) unsigned char memory[];
  InterGradients<T, is_fused>(p, work, reinterpret_cast<InterTiles<T>*>(memory), stages).run();
}

}  // namespace

template <class T>
void launch_chunk_backward_inter(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  const int stages = 2 * sizeof(InterTiles<T>) <= shared_memory() ? 2 : 1;  // one ahead where there is room
  launch("gpu-chunk backwards, through the states",
         is_fused ? inter_gradients<T, true> : inter_gradients<T, false>,
         dim3(work.forward.chunk_count * InterGradients<T, true>::blocks(p), work.heads), tile_threads,
         stages * sizeof(InterTiles<T>), p, work, stages);
}

template void launch_chunk_backward_inter(bool, const DeviceProblem&, const ChunkBackwardWork<float>&);
template void launch_chunk_backward_inter(bool, const DeviceProblem&, const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda

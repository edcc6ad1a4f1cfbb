// What goes through the states (B3): dq = scale e^G (do h^T), dk = e^(Gn - G) (v_new dh^T), dw = -dv h^T. A
// block computes 64 channels of all three.
#include "chunk_backward.cuh"

namespace kda_check::cuda {

namespace {

template <class T>
struct Staged {
  RowTiles<T> rows;  ///< do and dv, or v_new
  alignas(16) T state[tile_side][tile_stride<T>];
};

template <class T, bool is_fused>
class InterGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;

 public:
  __device__ InterGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work, Staged<T>& staged)
      : Base(p, work, tiles_of(p.K)), staged_(staged) {}

  __device__ void run() {
    const int first = this->block_ * tile_side;
    TileSums<T> dq = {}, dk = {}, dw = {};
    for (int v = 0; v < p_.V; v += tile_side) {
      const int depth = min(tile_side, p_.V - v);
      this->fetch_state(staged_.state[0], forward_.h, first, v);
      this->fetch(staged_.rows.left[0], work_.d_o, v, p_.V);
      this->fetch(staged_.rows.right[0], work_.dv, v, p_.V);
      this->arrive();
      add(dq, staged_.rows.left[0], depth);
      add(dw, staged_.rows.right[0], depth);
      __syncthreads();
      this->fetch_state(staged_.state[0], work_.dh, first, v);
      this->fetch(staged_.rows.left[0], forward_.v_new, v, p_.V);
      this->arrive();
      add(dk, staged_.rows.left[0], depth);
      __syncthreads();
    }
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
  __device__ void add(TileSums<T>& sums, const T* rows, int depth) const {
    add_product_of_rows<is_fused>(sums, rows, tile_stride<T>, staged_.state[0], tile_stride<T>, depth);
  }
  __device__ void write(int i, int k, T dq, T dk, T dw) const {
    const T G = this->G(i, k), tail = forward_.tail != nullptr ? chunk_.row(forward_.tail, i, p_.K)[k]
                                                               : this->G(chunk_.rows - 1, k) - G;  // Gn - G
    chunk_.row(work_.dq, i, p_.K)[k] = T(p_.scale) * (dq * this->exponential_of(G));
    chunk_.row(work_.dk, i, p_.K)[k] = dk * this->exponential_of(tail);
    chunk_.row(work_.dw, i, p_.K)[k] = kda::rounded(p_.casts.dw, -dw);
  }

  Staged<T>& staged_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    inter_gradients(const __grid_constant__ DeviceProblem p,
                    const __grid_constant__ ChunkBackwardWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  InterGradients<T, is_fused>(p, work, *reinterpret_cast<Staged<T>*>(memory)).run();
}

}  // namespace

template <class T>
void launch_chunk_backward_inter(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  launch("gpu-chunk backwards, through the states",
         is_fused ? inter_gradients<T, true> : inter_gradients<T, false>,
         dim3(work.forward.chunk_count * tiles_of(p.K), work.heads), tile_threads, sizeof(Staged<T>), p,
         work);
}

template void launch_chunk_backward_inter(bool, const DeviceProblem&, const ChunkBackwardWork<float>&);
template void launch_chunk_backward_inter(bool, const DeviceProblem&, const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda

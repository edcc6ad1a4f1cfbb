// Akk_inv = (I + L)^-1 (F4), inverse=blocks:16: substitution in the diagonal blocks, then their neighbours by
// products (docs/kda.md, "Inverse formulations"). Every sum is one thread's, from the first term upwards.
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

namespace {

constexpr int inverse_threads = block_rows * block_rows;  ///< one for each element of a block

template <class T>
struct StagedInverse {
  T L[most_rows][most_rows + 1];  ///< off the diagonal blocks as operands: rounded
  T X[most_rows][most_rows + 1];  ///< the inverse as operands
  T inner[most_row_blocks - 1][block_rows][block_rows + 1];
};

template <class T, bool is_fused>
class Inverse {
 public:
  __device__ Inverse(const DeviceProblem& p, const ChunkWork<T>& work, StagedInverse<T>& staged)
      : p_(p), work_(work), chunk_(work, blockIdx.x, blockIdx.y), staged_(staged) {}

  __device__ void run() {
    stage();
    __syncthreads();
    const int blocks = (chunk_.rows + block_rows - 1) / block_rows;
    if (threadIdx.x < blocks * block_rows) substitute(threadIdx.x / block_rows, threadIdx.x % block_rows);
    __syncthreads();
    const int row = threadIdx.x / block_rows, column = threadIdx.x % block_rows;
    for (int apart = 1; apart < blocks; ++apart) {
      for (int j = 0; j + apart < blocks; ++j)
        staged_.inner[j][row][column] =
            operand(apart == 1 ? left_product(j + 1, j, row, column) : inner_sum(j + apart, j, row, column));
      __syncthreads();
      for (int j = 0; j + apart < blocks; ++j) {
        const int i = j + apart;
        const T sum = apart == 1 ? times_right(j, row, column) : times_left(i, j, row, column);
        keep(i * block_rows + row, j * block_rows + column, -sum);
      }
      __syncthreads();
    }
  }

 private:
  __device__ T operand(T x) const { return kda::rounded(p_.casts.inverse_operands, x); }

  /// Rows and columns beyond the chunk are zero. What lies above the diagonal blocks is written here.
  __device__ void stage() {
    for (int e = threadIdx.x; e < most_rows * most_rows; e += inverse_threads) {
      const int i = e / most_rows, j = e % most_rows;
      const bool there = i < chunk_.rows && j < work_.C;
      const T l = there ? chunk_.row(work_.L, i, work_.C)[j] : T(0);
      staged_.L[i][j] = i / block_rows == j / block_rows ? l : operand(l);
      staged_.X[i][j] = T(0);
      if (there && j / block_rows > i / block_rows) chunk_.row(work_.Akk_inv, i, work_.C)[j] = T(0);
    }
  }

  /// Element (i, j) of the inverse, to memory and as an operand.
  __device__ void keep(int i, int j, T x) {
    staged_.X[i][j] = i < chunk_.rows ? operand(x) : T(0);
    if (i < chunk_.rows) chunk_.row(work_.Akk_inv, i, work_.C)[j] = kda::rounded(p_.casts.Akk_inv, x);
  }

  /// Column `column` of a diagonal block: X_i = -L_i + sum_m (-L_im) X_m, m = 1, ..., i - 1; ones at the end.
  __device__ void substitute(int block, int column) {
    const int first = block * block_rows;
    T x[block_rows];
#pragma unroll
    for (int i = 0; i < block_rows; ++i) {
      const T* const l = staged_.L[first + i] + first;
      T sum = column < i ? -l[column] : T(0);
#pragma unroll
      for (int m = 1; m < i; ++m) sum = multiply_add<is_fused>(-l[m], x[m], sum);
      x[i] = sum;
    }
#pragma unroll
    for (int i = 0; i < block_rows; ++i) keep(first + i, first + column, i == column ? T(1) : x[i]);
  }

  /// (X_ii L_ij)
  __device__ T left_product(int i, int j, int row, int column) const {
    T sum = T(0);
#pragma unroll
    for (int d = 0; d < block_rows; ++d)
      sum = multiply_add<is_fused>(staged_.X[i * block_rows + row][i * block_rows + d],
                                   staged_.L[i * block_rows + d][j * block_rows + column], sum);
    return sum;
  }
  /// sum_m L_im X_mj, m = j, ..., i - 1
  __device__ T inner_sum(int i, int j, int row, int column) const {
    T sum = T(0);
    for (int d = j * block_rows; d < i * block_rows; ++d)
      sum = multiply_add<is_fused>(staged_.L[i * block_rows + row][d], staged_.X[d][j * block_rows + column],
                                   sum);
    return sum;
  }
  /// (X_ii L_ij) X_jj, neighbours
  __device__ T times_right(int j, int row, int column) const {
    T sum = T(0);
#pragma unroll
    for (int d = 0; d < block_rows; ++d)
      sum = multiply_add<is_fused>(staged_.inner[j][row][d],
                                   staged_.X[j * block_rows + d][j * block_rows + column], sum);
    return sum;
  }
  /// X_ii (sum_m L_im X_mj)
  __device__ T times_left(int i, int j, int row, int column) const {
    T sum = T(0);
#pragma unroll
    for (int d = 0; d < block_rows; ++d)
      sum = multiply_add<is_fused>(staged_.X[i * block_rows + row][i * block_rows + d],
                                   staged_.inner[j][d][column], sum);
    return sum;
  }

  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const DeviceChunk<T> chunk_;
  StagedInverse<T>& staged_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(inverse_threads)
    inverse_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  Inverse<T, is_fused>(p, work, *reinterpret_cast<StagedInverse<T>*>(memory)).run();
}

}  // namespace

template <class T>
void launch_chunk_inverse(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) {
  launch("gpu-chunk, inverse", is_fused ? inverse_kernel<T, true> : inverse_kernel<T, false>,
         dim3(work.chunk_count, work.heads), inverse_threads, sizeof(StagedInverse<T>), p, work);
}

template void launch_chunk_inverse(bool, const DeviceProblem&, const ChunkWork<float>&);
template void launch_chunk_inverse(bool, const DeviceProblem&, const ChunkWork<double>&);

}  // namespace kda_check::cuda

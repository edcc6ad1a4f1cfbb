// gpu-chunk on tensor cores, backwards, in the order of its kernels (docs/gpu.md, "How the kernels
// work"):
//
//   prepare          the images of the chunks, as forwards; and G and the norms
//   states           forwards, without o: h and v_new are left
//   state gradients  from the last chunk to the first: dh, dv; the gradient of v as it is stored
//   gradients        a block a chunk: dq, dk, dg and dbeta of the value heads
//   dw               for those who ask for stages
//
// The rest is in gradients/token_gradients.cuh.
#pragma once

#include "cuda/gradients/token_gradients.cuh"
#include "cuda/variants/tensor_cores/chunk.cuh"

namespace kda_check::cuda {

/// Those that form the gradients of a chunk.
constexpr int gradient_warps = 16, gradient_threads = gradient_warps * warp_lanes;

/// Columns of V, filled up with zeros.
constexpr int value_rows(int V) { return (V + 15) / 16 * 16; }

// What is left between kernels is transposed, as a warp that has columns of a state has it, a row for each
// column of V, and its 16-bit rows lie as those of an image: element (row, column) is at
// ChunkImage<width>::at<columns>(row, column). So a bulk copy brings any whole rows to shared memory.
//
//   h, dh          [chunks][heads][value_rows(V)][width]       row v, column k; zeros beyond V and K
//   v_new, dv, dp  [chunks][heads][value_rows(V)][image_rows]  row v, column i; zeros beyond V and the chunk

/// Elements of a state, and of the values of a chunk.
constexpr std::size_t state_image(int V, int width) { return std::size_t(value_rows(V)) * width; }
constexpr std::size_t value_image(int V) { return std::size_t(value_rows(V)) * image_rows; }

/// What `run --stages` asks for of this pass, [tokens][heads][...] and dh [chunks][heads][K][V]; null: nobody
/// asks.
struct TensorCoreGradientStages {
  float *dAqk, *dv_local, *dh, *dv, *dw, *dAkk;
};

/// left.h and left.v_new are there, and G and the norms.
struct TensorCoreBackwardWork : TensorCoreWork {
  std::uint16_t *dh, *dv;  ///< of the leaving state, of v_new: operands
  std::uint16_t* dp;       ///< beta X^T dv, the gradient of v, as an operand
  float *dq, *dk;          ///< [tokens][heads][K], of normalised q and k
  float* dg;     ///< [tokens][heads][K], of the natural log of the decay; null: it is stored in its tensor
  float* dbeta;  ///< [tokens][heads] of the write strength
  TensorCoreGradientStages gradient_stages;

  /// Where the rows of a chunk of a head begin in an array whose chunks have `elements` elements.
  __host__ __device__ std::size_t image(std::size_t chunk, int local, std::size_t elements) const {
    return (chunk * heads + local) * elements;
  }
};

// state_gradient.cu. Stores the gradients of v and of the initial state, too.
void launch_tensor_core_state_gradient(const DeviceProblem& p, const TensorCoreBackwardWork& work);
// gradients.cu
void launch_tensor_core_gradients(const DeviceProblem& p, const TensorCoreBackwardWork& work);
// chain.cu. launch_backward_chain() with what was left of the forward pass; of split operands with the norms
// alone.
void launch_tensor_core_chain(const DeviceProblem& p, const TokenGradients<float>& work,
                              const TensorCoreLeft& left);
void launch_split_chain(const DeviceProblem& p, const TokenGradients<float>& work,
                        const TensorCoreLeft& left);

}  // namespace kda_check::cuda

// The CPU's kernels (kda/kernels), compiled for teams of threads: where their arrays are, and what is
// launched in the order it runs. They have every word of the arithmetic that a GPU has, in fp32; the chunk
// form in fp64, too. Arrays of tokens are [heads][tokens][stride], states [numbers][heads][K][value_stride];
// heads are those at work.
#pragma once

#define KDA_CHECK_ISA on_gpu

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "kda/kernels/chunk/chunk.hpp"
#include "kda/kernels/token/token.hpp"
#include "kda/terms/on_gpu.hpp"

namespace kda_check::cuda {

namespace kernels = kda::on_gpu;

/// What is in shared memory must have no constructor.
template <class Block>
struct alignas(16) BlockMemory {
  unsigned char bytes[sizeof(Block)];
  __device__ Block& block() { return *reinterpret_cast<Block*>(bytes); }
};

struct ExponentialOf {
  kda::Exponential kind;
  template <class T>
  __device__ T operator()(T x) const {
    return kernels::exponential_of(kind, x);
  }
};

constexpr int team_threads = 256, state_threads_of_team = 512, token_threads = 64;
constexpr int longest_chunk = 64;

template <class T>
struct TeamWork : HeadsAtWork {
  const TokenRange* chunks;     ///< [chunk_count]
  const PieceRange* chunks_of;  ///< [sequence_count]
  const TokenRange* sequences;  ///< [sequence_count], of the recurrence
  int chunk_count, sequence_count, token_count, C;
  int key_stride, value_stride;
  bool chunk_form, norm_by_reciprocal;
  kda::Operations operations;
  kda::DecayForm decay;
  int anchor_rows, inverse_rows;
  T clamp;
  kda::InverseForm inverse;
  kda::TailForm tail_form;
  T *q, *k, *g, *tail;       ///< [heads][tokens][key_stride]; g: log decays, decays, or their running sums
  T* read;                   ///< ... erase k, what predictions read the state along; null: k
  T* beta;                   ///< [heads][tokens]; 1 where there are gates
  T *v, *o;                  ///< [heads][tokens][value_stride]; v with a write gate times that
  T *Aqk, *L, *Akk_inv;      ///< [heads][tokens][C]
  T *w, *qg, *kg;            ///< [heads][tokens][key_stride]
  T *u, *v_new;              ///< [heads][tokens][value_stride]
  T *state, *h;              ///< [sequences][heads][K][value_stride]
  T* scratch;                ///< [teams][scratch_elements]
  kda::ScaledDecays scaled;  ///< by `factor`; a channel for each log decay has so many of the key
  float factor;
  int key_of_decay;
  int* slowest;  ///< [HV]: AnswerOnGpu
  std::size_t scratch_elements;
  int teams;
  /// [tokens][heads][columns] or [chunks][heads][K][V], by kda::Stage; null: nobody asks. All heads are at
  /// work where one is not.
  T* stages[kda::stage_count];

  __device__ std::size_t token_of(int local, std::size_t token) const {
    return std::size_t(local) * token_count + token;
  }
  /// Number of a state.
  __device__ std::size_t state_of(int local, int sequence) const {
    return std::size_t(sequence) * heads + local;
  }
  /// What kernels of chunks are told.
  void set(const kda::Arithmetic& arithmetic, std::size_t chunk_size) {
    C = static_cast<int>(chunk_size);
    operations = kda::operations_of(arithmetic);
    decay = arithmetic.decay, inverse = arithmetic.inverse, tail_form = arithmetic.tail;
    anchor_rows = std::min(arithmetic.anchor_rows, C);
    inverse_rows = std::min(arithmetic.inverse_rows, (C + 15) / 16 * 16);
    clamp = static_cast<T>(arithmetic.clamp * 0.693147180559945309417232121458);
  }
};

// prepare.cu
template <class T>
void launch_team_inputs(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work);
template <class T>
void launch_team_output(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work);
/// Of `count` states of the problem number n to, or from, number places[n] of an array; no places: n. `from`
/// has no data: zeros.
template <class T>
void launch_load_states(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work,
                        const Tensor& from, T* to, int count, const std::uint32_t* places = nullptr);
template <class T>
void launch_store_states(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work, const T* from,
                         const MutableTensor& to, int count, const std::uint32_t* places = nullptr);
// chunk.cu
/// F1 to F7.
template <class T>
void launch_team_operands(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work);
/// F8 to F11.
template <class T>
void launch_team_states(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work);
// tokens.cu
void launch_team_tokens(cudaStream_t stream, const DeviceProblem& p, const TeamWork<float>& work);

}  // namespace kda_check::cuda

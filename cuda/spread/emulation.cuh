// Where the arrays of an emulation are, and its kernels in the order they run (emulation.hpp). Arrays of
// tokens are [heads][tokens][stride] in fp32; heads are those at work.
#pragma once

#define KDA_CHECK_ISA on_gpu

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/spread/emulation.hpp"
#include "kda/kernels/chunk/chunk.hpp"
#include "kda/kernels/token/token.hpp"

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
  __device__ float operator()(float x) const { return kernels::exponential_of(kind, x); }
};

constexpr int team_threads = 256, state_threads_of_team = 512, token_threads = 64;

struct EmulationWork : HeadsAtWork {
  const TokenRange* chunks;     ///< [chunk_count]
  const TokenRange* sequences;  ///< [sequence_count]
  int chunk_count, sequence_count, token_count, C;
  int key_stride, value_stride;
  bool chunk_form, norm_by_reciprocal;
  kda::Operations operations;
  kda::DecayForm decay;
  int anchor_rows, inverse_rows;
  float clamp;
  kda::InverseForm inverse;
  kda::TailForm tail_form;
  float *q, *k, *g, *tail;   ///< [heads][tokens][key_stride]; g: log decays, decays, or their running sums
  float* beta;               ///< [heads][tokens]
  float *v, *o;              ///< [heads][tokens][value_stride]
  float *Aqk, *L, *Akk_inv;  ///< [heads][tokens][C]
  float *w, *qg, *kg;        ///< [heads][tokens][key_stride]
  float *u, *v_new;          ///< [heads][tokens][value_stride]
  float *state, *h;          ///< [heads][sequences][K][value_stride]
  float* scratch;            ///< [teams][scratch_elements]
  kda::ScaledDecays scaled;  ///< by `factor`; a channel for each log decay has so many of the key
  float factor;
  int key_of_decay;
  int* slowest;  ///< [HV]: AnswerOnGpu
  std::size_t scratch_elements;
  int teams;

  __device__ std::size_t token_of(int local, std::size_t token) const {
    return std::size_t(local) * token_count + token;
  }
  /// Number of a state.
  __device__ std::size_t state_of(int local, int sequence) const {
    return std::size_t(local) * sequence_count + sequence;
  }
};

// prepare.cu
void launch_emulation_prepare(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work);
void launch_emulation_store(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work);
/// Of the sequences, [heads][sequences][K][value_stride] there.
void launch_load_states(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work,
                        const Tensor& from, float* to);
void launch_store_states(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work,
                         const float* from, const MutableTensor& to);
// chunk.cu
/// F1 to F7.
void launch_emulation_operands(cudaStream_t stream, bool is_fused, const DeviceProblem& p,
                               const EmulationWork& work);
void launch_emulation_chunk(cudaStream_t stream, bool is_fused, const DeviceProblem& p,
                            const EmulationWork& work);
// tokens.cu
void launch_emulation_tokens(cudaStream_t stream, const DeviceProblem& p, const EmulationWork& work);

}  // namespace kda_check::cuda

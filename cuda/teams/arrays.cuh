// The arrays between the kernels of teams, for LauncherMemory.
#pragma once

#include "cuda/problem/launcher_memory.cuh"
#include "cuda/teams/gradient_work.cuh"

namespace kda_check::cuda {

/// Elements that a value head has of them.
struct TeamSizes {
  std::size_t tokens, keys, values, scores, state, states, pieces, matrices, biases;

  /// `rows`: of the longest chunk; `states`: sequences, or their parts; `pieces`: chunks of all of these.
  template <class T>
  TeamSizes(const kda::Dimensions& d, const TeamWork<T>& work, std::size_t rows, std::size_t sequences,
            std::size_t chunks)
      : tokens(d.B * d.T),
        keys(tokens * static_cast<std::size_t>(work.key_stride)),
        values(tokens * static_cast<std::size_t>(work.value_stride)),
        scores(tokens * rows),
        state(d.K * static_cast<std::size_t>(work.value_stride)),
        states(sequences * state),
        pieces(chunks),
        matrices(pieces * state),
        biases(pieces * d.K) {}
};

template <class T>
std::vector<WorkArray<T>> input_arrays(TeamWork<T>& work, const TeamSizes& of, bool has_gates) {
  return {{&work.q, "q", of.keys},
          {&work.k, "k", of.keys},
          {&work.g, "gates", of.keys},
          {&work.beta, "beta", of.tokens},
          {&work.v, "v", of.values},
          {&work.state, "state", of.states},
          {&work.read, "erased k", has_gates ? of.keys : 0}};
}
/// F1 to F9.
template <class T>
std::vector<WorkArray<T>> chunk_arrays(TeamWork<T>& work, const TeamSizes& of) {
  return {{&work.tail, "tail", of.keys},    {&work.Aqk, "Aqk", of.scores},
          {&work.L, "L", of.scores},        {&work.Akk_inv, "Akk_inv", of.scores},
          {&work.w, "w", of.keys},          {&work.qg, "qg", of.keys},
          {&work.kg, "kg", of.keys},        {&work.u, "u", of.values},
          {&work.v_new, "v_new", of.values}};
}
template <class T>
std::vector<WorkArray<T>> gradient_arrays(TeamGradientWork<T>& work, const TeamSizes& of, bool has_gates) {
  return {{&work.d_o, "do", of.values},
          {&work.written, "gradients of writes", of.values},
          {&work.dv, "gradients of v_new", of.values},
          {&work.dq, "dq of value heads", of.keys},
          {&work.dk, "dk of value heads", of.keys},
          {&work.dg, "dg", of.keys},
          {&work.dread, "gradients of erased k", has_gates ? of.keys : 0},
          {&work.dbeta, "dbeta", of.tokens},
          {&work.entering, "states between pieces", of.matrices},
          {&work.gradient, "gradients of states", of.states},
          {&work.sums.amplitude_terms, "terms of dA_log", of.tokens},
          {&work.sums.amplitude_sums, "sums of dA_log", of.pieces},
          {&work.sums.bias_sums, "sums of ddt_bias", of.biases}};
}
template <class T>
void append(std::vector<WorkArray<T>>& arrays, const std::vector<WorkArray<T>>& more) {
  arrays.insert(arrays.end(), more.begin(), more.end());
}

/// Elements of a team's scratch memory.
inline std::size_t scratch_of_chunks(bool backward, std::size_t rows, const kda::Dimensions& d,
                                     std::size_t key_stride, std::size_t value_stride) {
  const std::size_t forwards = kda::ChunkScratch(rows, key_stride, value_stride).total();
  if (!backward) return forwards;
  return std::max(forwards, GradientScratch(rows, d.K, d.V, key_stride, value_stride).total());
}
/// Four on each multiprocessor of an H100; two where they have more scratch memory.
constexpr int teams_at_once(bool backward) { return backward ? 264 : 528; }

/// How gradients are added up over tokens: in blocks, those of sequences.
template <class T>
void set_sums(TeamGradientWork<T>& work, const std::vector<TokenRange>& blocks,
              const std::vector<PieceRange>& blocks_of, LauncherMemory& memory, bool in_16_bits) {
  TokenGradients<T>& sums = work.sums;
  sums.blocks = memory.uploaded("blocks of tokens", blocks);
  sums.blocks_of = memory.uploaded("blocks of sequences", blocks_of);
  sums.block_count = static_cast<int>(blocks.size());
  sums.sequence_count = static_cast<int>(blocks_of.size()), sums.token_count = work.token_count;
  sums.group = work.group, sums.norm_by_reciprocal = work.norm_by_reciprocal, sums.dq_factor = 1;
  sums.by_head = true, sums.key_stride = work.key_stride, sums.value_stride = work.value_stride;
  sums.bias_from_stored_gate = work.chunk_form && in_16_bits;
}

}  // namespace kda_check::cuda

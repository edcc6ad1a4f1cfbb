// What recurrent, backwards, works in: its scratch memory, who shares a head, and tiles of matrices.
#pragma once

#include <algorithm>

#include "kda/head/token_form.hpp"
#include "kda/kernels/elements/gradient_rules.hpp"
#include "kda/kernels/table.hpp"
#include "kda/problem/problem.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::kda {

/// A checkpoint of the state is kept before each. What the kernels for any arithmetic keep of one, P_t of a
/// tile of keys, is to stay in the second-level cache.
constexpr std::size_t backward_block_tokens = parameter_block_tokens;

/// The threads that work on a query head together, by tiles of columns or rows, and the blocks of tokens
/// they do so for before the gradients of these are complete. Alone a thread completes block by block;
/// threads that share a head are started for each span, and a start is to be worth it.
struct Team {
  int threads;

  std::size_t span_blocks() const { return threads > 1 ? 64 : 1; }
};

/// Shares out the threads that no head is there for, if a head takes a millisecond or more: as many as there
/// are tiles of `lanes` lanes.
inline Team team_for(const Problem& problem, const Sequence& longest, std::size_t jobs, int threads,
                     std::size_t lanes) {
  const Dimensions& d = problem.dimensions();
  if (d.K * d.V * longest.length() < (std::size_t{1} << 21)) return {1};
  const std::size_t tiles = (std::max(d.K, d.V) + lanes - 1) / lanes;
  return {std::clamp(threads / static_cast<int>(jobs), 1, static_cast<int>(tiles))};
}

/// Scratch memory of one sequence of one query head, in elements.
struct BackwardSizes {
  std::size_t K, V, k_stride, v_stride, tokens, blocks, group;
  Strength strength;
  bool has_read;  ///< predictions read along something else than what is written along

  BackwardSizes(const Problem& problem, const Sequence& s, const TokenArithmetic& arithmetic)
      : K(problem.dimensions().K),
        V(problem.dimensions().V),
        k_stride(padded(K)),
        v_stride(padded(V)),
        tokens(s.length()),
        blocks((tokens + backward_block_tokens - 1) / backward_block_tokens),
        group(problem.heads_per_group()),
        strength(problem.dimensions().strength),
        has_read(strength == Strength::gates || arithmetic.weighs_key) {}

  bool has_column_betas() const { return strength == Strength::value; }

  std::size_t state() const { return K * v_stride; }
  std::size_t transposed_state() const { return V * k_stride; }
  std::size_t key_rows() const { return tokens * k_stride; }
  std::size_t value_rows() const { return tokens * v_stride; }
  std::size_t span_tokens(const Team& team) const {
    return std::min(blocks, team.span_blocks()) * backward_block_tokens;
  }
  std::size_t span(const Team& team) const {
    return span_tokens(team) * ((3 + has_read) * k_stride + 2 * v_stride);
  }
  /// Of each thread: the rows of a block, a tile of the state, and its history over a block.
  std::size_t thread(std::size_t lanes) const {
    return backward_block_tokens * ((3 + has_read) * k_stride + (2 + has_column_betas()) * v_stride + 1) +
           lanes * (V + backward_block_tokens * (V + 1));
  }
  /// What grows with the tokens (docs/kda.md, "Memory"): checkpoints, errors, and sums of dq and dk over the
  /// value heads of a group. Then a state, its gradient and that transposed, and what a span leaves.
  std::size_t total(std::size_t lanes, const Team& team) const {
    return blocks * state() + value_rows() + (group > 1 ? 2 * key_rows() : 0) + 3 * state() +
           transposed_state() + span(team) + static_cast<std::size_t>(team.threads) * thread(lanes);
  }
};

/// What a span of tokens of one value head leaves.
template <class T>
struct SpanRows {
  SpanRows(const BackwardSizes& n, const Team& team) : arena(n.span(team)) {
    const std::size_t tokens = n.span_tokens(team);
    for (T** const rows : {&dq, &dk, &dg}) *rows = arena.take(tokens * n.k_stride);
    for (T** const rows : {&r, &y}) *rows = arena.take(tokens * n.v_stride);
    if (n.has_read) dread = arena.take(tokens * n.k_stride);
  }
  tensor::Arena<T> arena;
  T *dq, *dk, *dg;     ///< [tokens][k_stride]
  T *r, *y;            ///< [tokens][v_stride] gradients of the predictions, and beta times them
  T* dread = nullptr;  ///< [tokens][k_stride] of what predictions read along; null: dk has both
};

/// What one thread has at hand of the block it is at.
template <class T>
struct BlockRows {
  BlockRows(const BackwardSizes& n, std::size_t lanes) : arena(n.thread(lanes)) {
    constexpr std::size_t tokens = backward_block_tokens;
    for (T** const rows : {&q, &k, &decay}) *rows = arena.take(tokens * n.k_stride);
    for (T** const rows : {&d_o, &write}) *rows = arena.take(tokens * n.v_stride);
    beta = arena.take(tokens);
    if (n.has_read) read = arena.take(tokens * n.k_stride);
    if (n.has_column_betas()) column_beta = arena.take(tokens * n.v_stride);
    state = arena.take(lanes * n.V);
    history = arena.take(tokens * lanes * (n.V + 1));
  }
  tensor::Arena<T> arena;
  T *q, *k, *decay;          ///< [tokens][k_stride]
  T *d_o, *write;            ///< [tokens][v_stride] do, or v on the way forwards; beta e
  T* beta;                   ///< [tokens]
  T* read = nullptr;         ///< [tokens][k_stride] as in TokenRows, or null
  T* column_beta = nullptr;  ///< [tokens][v_stride] in place of beta, or null
  T *state, *history;        ///< [V][lanes] of a tile of keys; tokens * (V + 1) * lanes elements
};

/// Element (row, column) of tile `tile`: `lanes` columns wide, from column tile * lanes on.
template <class T>
void copy_to_tile(const T* matrix, std::size_t stride, std::size_t rows, std::size_t lanes, std::size_t tile,
                  T* to) {
  for (std::size_t row = 0; row < rows; ++row)
    std::copy_n(matrix + row * stride + tile * lanes, lanes, to + row * lanes);
}
template <class T>
void copy_from_tile(const T* from, std::size_t stride, std::size_t rows, std::size_t lanes, std::size_t tile,
                    T* matrix) {
  for (std::size_t row = 0; row < rows; ++row)
    std::copy_n(from + row * lanes, lanes, matrix + row * stride + tile * lanes);
}
/// A tile of the transposed matrix; `rows` of the matrix are there, lanes beyond them are zero.
template <class T>
void copy_to_transposed_tile(const T* matrix, std::size_t stride, std::size_t rows, std::size_t columns,
                             std::size_t lanes, std::size_t tile, T* to) {
  const std::size_t first = tile * lanes, used = std::min(lanes, rows - first);
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t lane = 0; lane < used; ++lane)
      to[column * lanes + lane] = matrix[(first + lane) * stride + column];
    for (std::size_t lane = used; lane < lanes; ++lane) to[column * lanes + lane] = 0;
  }
}

}  // namespace kda_check::kda

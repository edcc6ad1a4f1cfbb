// What one head needs for one chunk of the chunk form: the arrays behind a ChunkBlock, and its inputs.
#pragma once

#include <cstddef>

#include "kda/head/head_io.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::kda {

/// Rows of the longest chunk there is, but for chunks beyond 64 rows no fewer than 64: blocks have up to 64.
std::size_t rows_needed(const Problem& problem, const RunOptions& options);

/// What the kernels ask of the arithmetic, with the layouts of a problem's rows.
Operations chunk_operations(const Problem& problem, const RunOptions& options);

/// What a chunk's backward kernels are compiled for.
GradientLayouts chunk_gradient_layouts(const Problem& problem, const RunOptions& options,
                                       const Launch& launch);

/// Rows of running sums from the last row on, in place: x_i + ... + x_n, in the order sums from the end have.
template <class T>
void cumulate_from_the_end(const Reduction& reduction, T* x, std::size_t rows, std::size_t stride);

/// The same as Triton's reversed tl.cumsum has it of a chunk of `chunk_rows` rows whose last ones, beyond
/// `rows`, are zeros: `together` rows at once from the end of the chunk on.
template <class T>
void scan_from_the_end(std::size_t together, T* x, std::size_t rows, std::size_t chunk_rows,
                       std::size_t stride);

/// The initial state of a sequence as its first chunk finds it, [key_dim][stride].
template <class T>
void load_initial_state(const HeadReader<T>& reader, const CastPoints& casts, std::size_t key_dim,
                        const Sequence& s, std::size_t head, T* state, std::size_t stride);

/// The pointers of `block` point into its memory.
template <class T>
class ChunkWorkspace {
 public:
  /// Elements for chunks of `rows` rows.
  static std::size_t elements(const Problem& problem, std::size_t rows);

  ChunkWorkspace(const Problem& problem, const RunOptions& options, std::size_t rows);

  /// The inputs of rows [begin, begin + rows), the gates cumulated (F1).
  void load(const HeadReader<T>& reader, const HeadTokens& tokens);

  /// The initial state, which is that of the first chunk.
  void load_state(const HeadReader<T>& reader, const Sequence& s, std::size_t head);
  /// [key_dim][v_stride], that of the next chunk.
  void set_state(const T* state);

  std::size_t k_stride() const { return k_stride_; }
  std::size_t v_stride() const { return v_stride_; }
  std::size_t score_stride() const { return padded(rows_); }

  ChunkBlock<T> block{};
  T* G;  ///< of the block

 private:
  std::size_t rows_, k_stride_, v_stride_;
  tensor::Arena<T> arena_;
  T *q_, *k_, *tail_, *factors_, *v_, *beta_;
  T* read_;              ///< null: k_
  T* bounds_ = nullptr;  ///< of DecayForm::anchor_bound
  T half_span_ = 0;      ///< what it is above a block's first row
};

}  // namespace kda_check::kda

// gpu-chunk in parts (docs/arithmetic.md, "segments"): what each part does to what is carried through it, the
// state S -> M S + A and backwards its gradient, the products that compose and apply such maps, and what
// enters all parts.
//
//   maps       A by the pass over the state from zero (variants/chunk/state.cuh), M beside it (maps.cu)
//   exchange   between the devices that have a part each
//   merge      level by level, all sequences side by side (products.cu)
//   states     the pass again, part by part, from what enters each
#pragma once

#include <vector>

#include "cuda/problem/launcher_memory.cuh"
#include "cuda/variants/chunk/backward.cuh"
#include "cuda/variants/shards/segments.hpp"

namespace kda_check::cuda {

/// Tokens of the parts, numbered through all batch rows; where sequences are not cut theirs.
std::vector<TokenRange> parts_of(const Request& r, const Segments& segments);

/// Whose map is applied to what: numbers in the arrays of a MapProduct.
struct MapJob {
  std::uint32_t map, x, plus, y;
};

/// y = M x, or plus + M x: arrays of [numbers][heads][K][width], M of [numbers][heads][K][K].
template <class T>
struct MapProduct {
  const T *M, *x, *plus;  ///< plus null: there is none
  T* y;
  int width;
  kda::Rounding factor, result;  ///< of x on its way into the product; of y
};

/// The parts of a sequence, numbered through all sequences, in the order they are passed.
struct PassedParts {
  std::uint32_t first, last;
};

// maps.cu. T of all chunks [chunks][heads][K][K], and M of the sequences of `work`, from the
// identity, [sequences][heads][K][K].
template <class T>
void launch_transitions(bool is_fused, bool from_the_end, const DeviceProblem& p, const ChunkWork<T>& work,
                        T* transitions, T* M);
// products.cu
template <class T>
void launch_map_products(bool is_fused, const DeviceProblem& p, int heads, const MapProduct<T>& product,
                         const MapJob* jobs, std::size_t count);
/// Between `states` [parts][heads][K][V] and states of the problem: into the parts that are passed first, out
/// of those that are passed last.
template <class T>
void launch_enter(const DeviceProblem& p, const ChunkWork<T>& work, const PassedParts* parts, int sequences,
                  const Tensor& from, T* states);
template <class T>
void launch_leave(const DeviceProblem& p, const ChunkWork<T>& work, const PassedParts* parts, int sequences,
                  const T* states, const MutableTensor& to);
template <class T>
void launch_round(kda::Rounding rounding, T* x, std::size_t count);

/// What is carried through a problem in parts, in one direction: forwards alone, or in a backward pass. Its
/// address must stay until its arrays are placed.
template <class T>
class SegmentStates {
 public:
  enum class Direction : unsigned char { forwards, forwards_of_backward_pass, from_the_end };

  /// Adds its arrays to those that will be placed.
  SegmentStates(const Request& r, const Segments& segments, Direction direction, LauncherMemory& memory,
                std::vector<WorkArray<T>>& arrays);
  SegmentStates(const SegmentStates&) = delete;
  SegmentStates& operator=(const SegmentStates&) = delete;

  bool has_maps() const { return !cut_.empty(); }
  /// The parts that have maps as the sequences of a pass, whose results A are.
  ChunkWork<T> mapped(const ChunkWork<T>& work) const;
  T* A() const { return A_; }
  /// From A on: what enters all parts but those that are passed first.
  void merge(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) const;

  /// [parts][heads][K][V] what enters a part, then what leaves it.
  T* states() const { return states_; }
  void enter(const DeviceProblem& p, const ChunkWork<T>& work, const Tensor& from) const;
  void leave(const DeviceProblem& p, const ChunkWork<T>& work, const MutableTensor& to) const;

 private:
  /// Products that need nothing of each other.
  struct Step {
    bool composes;  ///< maps, else they are applied to states
    std::size_t first, count;
  };

  void list_maps(const Request& r, const Segments& segments, LauncherMemory& memory);
  void plan_merges(bool is_tree, LauncherMemory& memory);
  void exchange(const DeviceProblem& p, const ChunkWork<T>& work) const;
  std::uint32_t number(const PieceRange& parts, std::uint32_t passed) const {
    return direction_ == Direction::from_the_end ? parts.count - 1 - passed : passed;
  }

  const Direction direction_;
  Peers* const peers_;
  const kda::Rounding transition_, segment_state_;
  std::vector<PieceRange> parts_;      ///< by sequence
  std::vector<std::uint32_t> cut_;     ///< the sequences of several parts
  std::size_t chunks_ = 0;             ///< of all parts
  std::size_t formed_ = 0, maps_ = 0;  ///< maps of parts, [parts][cut]; composed ones behind them
  std::vector<Step> steps_;
  const PassedParts* passed_ = nullptr;        ///< [sequences]
  const TokenRange* mapped_ = nullptr;         ///< [formed]
  const PieceRange* mapped_chunks_ = nullptr;  ///< [formed]
  const MapJob* jobs_ = nullptr;
  T *M_ = nullptr, *A_ = nullptr;  ///< [maps][heads][K][K], [maps][heads][K][V]
  T* transitions_ = nullptr;       ///< [chunks][heads][K][K]
  T* states_ = nullptr;
};

/// F8, F9 and F11 of a problem in parts; `work` has them for sequences.
template <class T>
void launch_chunk_state(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work,
                        const SegmentStates<T>& states);
/// The same, and B2 beside it.
template <class T>
void launch_chunk_backward_states(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work,
                                  const SegmentStates<T>& states, const SegmentStates<T>& gradients);

}  // namespace kda_check::cuda

// gpu-chunk in parts (docs/arithmetic.md, "segments"): what each part does to what is carried through it, the
// state S -> M S + A and backwards its gradient, the products that compose and apply such maps, and what
// enters all parts.
//
//   maps       A by the pass over the state from zero (teams/chunk.cu), M beside it (maps.cu)
//   exchange   between the devices that have a part each
//   merge      level by level, all sequences side by side (maps.cu)
//   states     the pass again, part by part, from what enters each
#pragma once

#include <vector>

#include "cuda/teams/arrays.cuh"
#include "cuda/variants/shards/segments.hpp"

namespace kda_check::cuda {

/// Tokens of the parts, numbered through all batch rows; where sequences are not cut theirs.
std::vector<TokenRange> parts_of(const Request& r, const Segments& segments);

/// Whose map is applied to what: numbers in the arrays of a MapProduct.
struct MapJob {
  std::uint32_t map, x, plus, y;
};

/// y = M x, or plus + M x: arrays of [numbers][heads][K][stride], M of [numbers][heads][K][key_stride].
template <class T>
struct MapProduct {
  const T *M, *x, *plus;  ///< plus null: there is none
  T* y;
  int width, stride;
  kda::Rounding factor, result;  ///< of x on its way into the product; of y
};

// maps.cu
/// M of the sequences of `work`, from the identity, [sequences][heads][K][key_stride].
template <class T>
void launch_transitions(bool from_the_end, const DeviceProblem& p, const TeamWork<T>& work, T* M);
template <class T>
void launch_map_products(const DeviceProblem& p, const TeamWork<T>& work, const MapProduct<T>& product,
                         const MapJob* jobs, int count);
template <class T>
void launch_round(kda::Rounding rounding, T* x, std::size_t count);

/// What is carried through a problem in parts, in one direction: forwards alone, or in a backward pass. Its
/// address must stay until its arrays are placed.
template <class T>
class SegmentStates {
 public:
  enum class Direction : unsigned char { forwards, forwards_of_backward_pass, from_the_end };

  /// Adds its arrays to those that will be placed. The sequences of `work` are the parts.
  SegmentStates(const Request& r, const Segments& segments, Direction direction, const TeamWork<T>& work,
                LauncherMemory& memory, std::vector<WorkArray<T>>& arrays);
  SegmentStates(const SegmentStates&) = delete;
  SegmentStates& operator=(const SegmentStates&) = delete;

  bool has_maps() const { return !cut_.empty(); }
  /// The parts that have maps as the sequences of a pass from zero, whose final states are A.
  TeamWork<T> mapped(const DeviceProblem& p, TeamWork<T> work) const;
  /// From the results of that pass on: what enters all parts but those that are passed first.
  void merge(const DeviceProblem& p, const TeamWork<T>& mapped, T* states) const;
  // `states` [parts][heads][K][value_stride]: from and to states of the problem.
  void enter(const DeviceProblem& p, const TeamWork<T>& work, const Tensor& from, T* states) const;
  void leave(const DeviceProblem& p, const TeamWork<T>& work, const T* states, const MutableTensor& to) const;

 private:
  /// Products that need nothing of each other.
  struct Step {
    bool composes;  ///< maps, else they are applied to states
    std::size_t first, count;
  };

  void list_maps(const Request& r, const Segments& segments, LauncherMemory& memory);
  void plan_merges(bool is_tree, LauncherMemory& memory);
  void exchange(const DeviceProblem& p, const TeamWork<T>& work) const;
  std::uint32_t number(const PieceRange& parts, std::uint32_t passed) const {
    return direction_ == Direction::from_the_end ? parts.count - 1 - passed : passed;
  }

  const Direction direction_;
  Peers* const peers_;
  const kda::Rounding transition_, segment_state_;
  std::vector<PieceRange> parts_;      ///< by sequence
  std::vector<std::uint32_t> cut_;     ///< the sequences of several parts
  std::size_t formed_ = 0, maps_ = 0;  ///< maps of parts, [parts][cut]; composed ones behind them
  std::vector<Step> steps_;
  const std::uint32_t *first_ = nullptr, *last_ = nullptr;  ///< [sequences], the parts that are passed so
  const PieceRange* mapped_chunks_ = nullptr;               ///< [formed]
  const MapJob* jobs_ = nullptr;
  T *M_ = nullptr, *A_ = nullptr;  ///< [maps][heads][K][key_stride], [maps][heads][K][value_stride]
};

}  // namespace kda_check::cuda

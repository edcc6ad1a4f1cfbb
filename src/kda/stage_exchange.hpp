// Stages of one chunk between the kernel's arrays and tensors: what a run of the chunk form is given, and
// what it tells.
#pragma once

#include <vector>

#include "kda/kernels/table.hpp"
#include "kda/stages.hpp"

namespace kda_check::kda {

/// For one sequence, whose chunks it numbers.
template <class T>
class StageExchange {
 public:
  StageExchange(const Problem& problem, const StageHooks& hooks, const Sequence& sequence,
                std::size_t chunk_size)
      : problem_(problem),
        hooks_(hooks),
        sequence_(sequence),
        chunk_size_(chunk_size),
        d_(chunked_dimensions(problem, chunk_size)),
        first_index_(first_chunk(problem, sequence, chunk_size)) {}

  /// Loads the stages to be used into block.given. Call before the kernel, G complete.
  void give(std::size_t head, std::size_t begin, ChunkBlock<T>& block, T* G) {
    const ChunkPlace place = place_of(head, begin, block.rows);
    if (hooks_.computed != nullptr)
      copy_out(Stage::g_cumsum, place, G, block.key_stride);  // before it is replaced
    if (hooks_.given == nullptr) return;
    for (std::size_t s = 0; s < stage_count; ++s) {
      if (!hooks_.use_given[s]) continue;
      const auto stage = static_cast<Stage>(s);
      const std::size_t stride = stride_of(stage, block);
      if (stage == Stage::g_cumsum) {
        copy_in(stage, place, G, stride);
        continue;
      }
      std::vector<T>& memory = memory_[s];
      memory.assign(std::max(block.rows, d_.K) * stride, T(0));
      copy_in(stage, place, memory.data(), stride);
      *target(stage, block) = memory.data();
    }
  }

  /// Stores what the kernel computed.
  void tell(std::size_t head, std::size_t begin, const ChunkBlock<T>& block) {
    if (hooks_.computed == nullptr) return;
    const ChunkPlace place = place_of(head, begin, block.rows);
    const T* const arrays[stage_count] = {nullptr,  block.Aqk, block.Akk_inv, block.u,    block.w,
                                          block.qg, block.kg,  block.h,       block.v_new};
    for (std::size_t s = 1; s < stage_count; ++s)
      copy_out(static_cast<Stage>(s), place, arrays[s], stride_of(static_cast<Stage>(s), block));
  }

 private:
  ChunkPlace place_of(std::size_t head, std::size_t begin, std::size_t rows) const {
    return {sequence_.batch, begin, rows, first_index_ + (begin - sequence_.begin) / chunk_size_, head};
  }
  static std::size_t stride_of(Stage stage, const ChunkBlock<T>& block) {
    switch (stage) {
      case Stage::Aqk:
      case Stage::Akk_inv:
        return block.score_stride;
      case Stage::u:
      case Stage::v_new:
      case Stage::h:
        return block.value_stride;
      default:
        return block.key_stride;
    }
  }
  static const T** target(Stage stage, ChunkBlock<T>& block) {
    const T** const targets[stage_count] = {nullptr,         &block.given.Aqk, &block.given.Akk_inv,
                                            &block.given.u,  &block.given.w,   &block.given.qg,
                                            &block.given.kg, &block.given.h,   &block.given.v_new};
    return targets[static_cast<std::size_t>(stage)];
  }
  template <class Body>
  void over_elements(Stage stage, const ChunkPlace& place, Body body) const {
    const StageLayout layout(stage, d_, problem_.options.state_v_first);
    for (std::size_t row = 0; row < layout.rows(place); ++row)
      for (std::size_t column = 0; column < layout.columns(place); ++column)
        body(row, column, layout.element(place, row, column));
  }
  void copy_out(Stage stage, const ChunkPlace& place, const T* array, std::size_t stride) const {
    T* const target = reinterpret_cast<T*>((*hooks_.computed)[static_cast<std::size_t>(stage)].data());
    over_elements(stage, place, [&](std::size_t row, std::size_t column, std::size_t element) {
      target[element] = array[row * stride + column];
    });
  }
  void copy_in(Stage stage, const ChunkPlace& place, T* array, std::size_t stride) const {
    const tensor::Tensor& source = (*hooks_.given)[static_cast<std::size_t>(stage)];
    over_elements(stage, place, [&](std::size_t row, std::size_t column, std::size_t element) {
      array[row * stride + column] = static_cast<T>(source.value(element));
    });
  }

  const Problem& problem_;
  const StageHooks& hooks_;
  const Sequence sequence_;
  const std::size_t chunk_size_;
  const Dimensions d_;
  const std::size_t first_index_;
  std::array<std::vector<T>, stage_count> memory_;
};

}  // namespace kda_check::kda

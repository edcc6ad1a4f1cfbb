// Stages of one chunk between the kernel's arrays and tensors: what a run of the chunk form is given, and
// what it tells.
#pragma once

#include <algorithm>
#include <vector>

#include "kda/kernels/table.hpp"
#include "kda/problem/stages.hpp"

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

  /// Stores the sums of gates that this run computed. Call before they are replaced.
  void tell_gates(std::size_t head, std::size_t begin, const ChunkBlock<T>& block) {
    if (hooks_.computed == nullptr) return;
    copy_out(Stage::g_cumsum, place_of(head, begin, block.rows), block.G, block.key_stride);
  }

  /// Loads the forward stages to be used into block.given. Call before the kernel, G complete.
  void give(std::size_t head, std::size_t begin, ChunkBlock<T>& block, T* G) {
    const ChunkPlace place = place_of(head, begin, block.rows);
    if (is_given(Stage::g_cumsum)) {
      copy_in(Stage::g_cumsum, place, G, block.key_stride);
      if (block.operations.gates != Gates::natural)  // it is given to the base e
        for (std::size_t e = 0; e < block.rows * block.key_stride; ++e) G[e] = G[e] * log2_of_e<T>;
    }
    load(forward_stages, block.given, place, block);
  }

  /// Stores what the kernel computed.
  void tell(std::size_t head, std::size_t begin, const ChunkBlock<T>& block) {
    store(forward_stages, block, place_of(head, begin, block.rows), block);
  }

  /// The same for the stages of the backward pass.
  void give(std::size_t head, std::size_t begin, const ChunkBlock<T>& chunk, ChunkBackwardBlock<T>& block) {
    load(backward_stages, block.given, place_of(head, begin, chunk.rows), chunk);
  }
  void tell(std::size_t head, std::size_t begin, const ChunkBlock<T>& chunk,
            const ChunkBackwardBlock<T>& block) {
    store(backward_stages, block, place_of(head, begin, chunk.rows), chunk);
  }

 private:
  /// Where a kernel leaves a stage, and where it takes one that is given.
  template <class Block, class Given>
  struct Exchanged {
    Stage stage;
    T* Block::*computed;
    const T* Given::*given;
  };
  using Forward = ChunkBlock<T>;
  using Backward = ChunkBackwardBlock<T>;
  static constexpr Exchanged<Forward, GivenStages<T>> forward_stages[] = {
      {Stage::Aqk, &Forward::Aqk, &GivenStages<T>::Aqk},
      {Stage::Akk_inv, &Forward::Akk_inv, &GivenStages<T>::Akk_inv},
      {Stage::u, &Forward::u, &GivenStages<T>::u},
      {Stage::w, &Forward::w, &GivenStages<T>::w},
      {Stage::qg, &Forward::qg, &GivenStages<T>::qg},
      {Stage::kg, &Forward::kg, &GivenStages<T>::kg},
      {Stage::h, &Forward::h, &GivenStages<T>::h},
      {Stage::v_new, &Forward::v_new, &GivenStages<T>::v_new}};
  static constexpr Exchanged<Backward, GivenGradientStages<T>> backward_stages[] = {
      {Stage::dAqk, &Backward::dAqk, &GivenGradientStages<T>::dAqk},
      {Stage::dv_local, &Backward::dv_local, &GivenGradientStages<T>::dv_local},
      {Stage::dh, &Backward::dh, &GivenGradientStages<T>::dh},
      {Stage::dv, &Backward::dv, &GivenGradientStages<T>::dv},
      {Stage::dw, &Backward::dw, &GivenGradientStages<T>::dw},
      {Stage::dAkk, &Backward::dAkk, &GivenGradientStages<T>::dAkk}};

  ChunkPlace place_of(std::size_t head, std::size_t begin, std::size_t rows) const {
    return {sequence_.batch, begin, rows, first_index_ + (begin - sequence_.begin) / chunk_size_, head};
  }
  bool is_given(Stage stage) const {
    return hooks_.given != nullptr && hooks_.use_given[static_cast<std::size_t>(stage)];
  }
  template <class Row, std::size_t count, class Given>
  void load(const Row (&rows)[count], Given& given, const ChunkPlace& place, const ChunkBlock<T>& block) {
    for (const Row& row : rows) {
      if (!is_given(row.stage)) continue;
      const std::size_t stride = stride_of(row.stage, block);
      std::vector<T>& memory = memory_[static_cast<std::size_t>(row.stage)];
      memory.assign(std::max(block.rows, d_.K) * stride, T(0));
      copy_in(row.stage, place, memory.data(), stride);
      if (lacks_scale(row.stage, block))
        for (T& x : memory) x = x / block.scale;
      if (has_scale(row.stage, block))
        for (T& x : memory) x = x * block.scale;
      given.*row.given = memory.data();
    }
  }
  template <class Row, std::size_t count, class Block>
  void store(const Row (&rows)[count], const Block& computed, const ChunkPlace& place,
             const ChunkBlock<T>& block) const {
    if (hooks_.computed == nullptr) return;
    for (const Row& row : rows)
      copy_out(row.stage, place, computed.*row.computed, stride_of(row.stage, block),
               lacks_scale(row.stage, block) ? block.scale : T(1),
               has_scale(row.stage, block) ? block.scale : T(1));
  }
  /// The stage has scale; in the block it is multiplied to o.
  static bool lacks_scale(Stage stage, const ChunkBlock<T>& block) {
    return stage == Stage::Aqk && block.operations.scale == ScaledPart::output;
  }
  /// The stage has none; in the block q e^G was multiplied by it before it was rounded.
  static bool has_scale(Stage stage, const ChunkBlock<T>& block) {
    return stage == Stage::qg && block.operations.scale == ScaledPart::q_late;
  }
  static std::size_t stride_of(Stage stage, const ChunkBlock<T>& block) {
    switch (row_of(stage).shape) {
      case StageShape::scores:
        return block.score_stride;
      case StageShape::by_key:
        return block.key_stride;
      case StageShape::by_value:
      case StageShape::state:
        return block.value_stride;
    }
    return 0;
  }
  template <class Body>
  void over_elements(Stage stage, const ChunkPlace& place, Body body) const {
    const StageLayout layout(stage, d_, problem_.options.state_v_first);
    for (std::size_t row = 0; row < layout.rows(place); ++row)
      for (std::size_t column = 0; column < layout.columns(place); ++column)
        body(row, column, layout.element(place, row, column));
  }
  void copy_out(Stage stage, const ChunkPlace& place, const T* array, std::size_t stride, T factor = T(1),
                T divisor = T(1)) const {
    T* const target = reinterpret_cast<T*>((*hooks_.computed)[static_cast<std::size_t>(stage)].data());
    over_elements(stage, place, [&](std::size_t row, std::size_t column, std::size_t element) {
      target[element] = factor * array[row * stride + column] / divisor;
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

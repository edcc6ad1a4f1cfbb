// The named intermediates of the chunk form (F1 to F9 of docs/kda.md, "Stages", and B1 to B3 of "Chunk
// backward"), in the order they are computed, and tensors of them in the shapes of the fixture format.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kda/arithmetic/cast_points.hpp"
#include "kda/problem/problem.hpp"
#include "kda/terms/stage.hpp"

namespace kda_check::kda {

/// What a chunk's part of a stage is: rows of tokens with the channels of the key, of the value, or with a
/// column for each token; or a state.
enum class StageShape : std::uint8_t { by_key, by_value, scores, state };

/// The passes whose stages are meant.
enum class Passes : std::uint8_t { forward, both };

struct StageRow {
  Stage stage;
  std::string_view name;
  std::string_view formula;
  StageShape shape;
  Rounding CastPoints::*stored_as;  ///< where it is rounded as it is stored; null: nowhere
  bool backward = false;

  bool lower_triangular() const { return shape == StageShape::scores; }  ///< nothing beyond the row's column
};
/// By Stage: those of the forward pass, then those of the backward pass.
std::span<const StageRow> stages(Passes passes = Passes::forward);
const StageRow& row_of(Stage stage);

/// One tensor for each stage, by Stage; those that are not there are empty.
using StageTensors = std::array<tensor::Tensor, stage_count>;

/// The dimensions of a problem cut into chunks of `chunk_size`: what stage tensors are shaped by.
Dimensions chunked_dimensions(const Problem& problem, std::size_t chunk_size);
/// Memory for the stages in `dtype`, zeros.
StageTensors allocate_stages(const Problem& problem, std::size_t chunk_size, numeric::DType dtype,
                             Passes passes = Passes::forward);

/// One chunk of one head: rows [begin, begin + rows) of a batch row; `index`: its number in the batch row.
struct ChunkPlace {
  std::size_t batch, begin, rows, index, head;
};
/// The number of a sequence's first chunk in its batch row.
std::size_t first_chunk(const Problem& problem, const Sequence& sequence, std::size_t chunk_size);

/// Where element (row, column) of a chunk's stage is in that stage's tensor. States: row = key, column =
/// value.
class StageLayout {
 public:
  StageLayout(Stage stage, const Dimensions& dimensions, bool state_v_first);
  std::size_t rows(const ChunkPlace& place) const;
  std::size_t columns(const ChunkPlace& place) const;
  std::size_t element(const ChunkPlace& place, std::size_t row, std::size_t column) const;

 private:
  Stage stage_;
  Dimensions d_;
  bool v_first_;
};

/// What a run of the chunk form tells about its stages, and what it is told. A forward run tells those of the
/// forward pass, a backward run those of the backward pass; it is told both.
struct StageHooks {
  StageTensors* computed = nullptr;     ///< filled with what this run computed, before anything is replaced
  const StageTensors* given = nullptr;  ///< values used in place of the computed ones ...
  std::array<bool, stage_count> use_given{};  ///< ... for these stages

  bool asked() const { return computed != nullptr || given != nullptr; }
};

}  // namespace kda_check::kda

// The named intermediates of the chunk form (F1 to F9 of docs/kda.md, "Stages"), in the order they are
// computed, and tensors of them in the shapes of the fixture format.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kda/problem.hpp"

namespace kda_check::kda {

enum class Stage : std::uint8_t { g_cumsum, Aqk, Akk_inv, u, w, qg, kg, h, v_new };
inline constexpr std::size_t stage_count = 9;

struct StageRow {
  Stage stage;
  std::string_view name;
  std::string_view formula;
  bool lower_triangular;  ///< columns beyond the row's own hold nothing
};
std::span<const StageRow> stages();

/// One tensor for each stage, by Stage; those that are not there are empty.
using StageTensors = std::array<tensor::Tensor, stage_count>;

/// The dimensions of a problem cut into chunks of `chunk_size`: what stage tensors are shaped by.
Dimensions chunked_dimensions(const Problem& problem, std::size_t chunk_size);
/// Memory for all stages in `dtype`, zeros.
StageTensors allocate_stages(const Problem& problem, std::size_t chunk_size, numeric::DType dtype);

/// One chunk of one head: rows [begin, begin + rows) of a batch row; `index`: its number in the batch row.
struct ChunkPlace {
  std::size_t batch, begin, rows, index, head;
};
/// The number of a sequence's first chunk in its batch row.
std::size_t first_chunk(const Problem& problem, const Sequence& sequence, std::size_t chunk_size);

/// Where element (row, column) of a chunk's stage is in that stage's tensor. h: row = key, column = value.
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

/// What a run of the chunk form tells about its stages, and what it is told.
struct StageHooks {
  StageTensors* computed = nullptr;     ///< filled with what this run computed, before anything is replaced
  const StageTensors* given = nullptr;  ///< values used in place of the computed ones ...
  std::array<bool, stage_count> use_given{};  ///< ... for these stages

  bool asked() const { return computed != nullptr || given != nullptr; }
};

}  // namespace kda_check::kda

// Writes since a state, in the rows of a ring beside its slot (docs/serving.md): a call begins with the state
// of the slot and the tokens of these rows behind it, which are tokens of the ordinary form like its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "kda/problem/outline.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::kda {

struct PoolCall;
struct PoolPiece;

/// Raw writes are k, v, g and beta; solved ones k, u and g, where a state becomes exp(g) S + k u^T.
inline constexpr std::string_view ring_tensors[] = {"ring_k", "ring_v", "ring_u", "ring_g", "ring_beta"};
inline bool is_ring(std::string_view tensor) { return tensor.starts_with("ring_"); }

/// ring_length, ring_base, and when a ring is folded into the state of its slot.
struct RingTable {
  std::size_t rows = 0;                    ///< of every ring; 0: there are none
  std::vector<std::int64_t> length, base;  ///< [N]: rows that hold, and the first; no base: row 0
  std::optional<std::size_t> flush;        ///< where so many rows hold, or more; none: never
  bool folds_call = false;                 ///< with the tokens of the call, else before them

  bool operator==(const RingTable&) const = default;
  bool folds(std::size_t held) const { return flush && held >= *flush && (folds_call || held > 0); }
};

/// Of rings whose tensors have these shapes (null: missing), beside that many slots; 0: there are none.
/// Throws Error{input} for tensors that make no ring.
std::size_t rows_of_rings(const std::function<const tensor::Shape*(std::string_view)>& shape_of,
                          std::size_t slots, const Dimensions& call);
/// Throws Error{input} unless there are as many entries as sequences.
void check_ring_entries(const RingTable& ring, std::size_t sequences);

/// The rows of the ring of slot `slot` that hold before the tokens of a sequence, and those that these are
/// written to: row r as number slot * rows + r. Throws Error{input} where they have no room.
struct RingRows {
  std::vector<std::size_t> held, written;
};
RingRows ring_rows_of(const RingTable& ring, const Sequence& sequence, std::size_t slot);

/// The tokens of pieces behind those of their rings: `tokens` has the former, one piece after the other.
Problem behind_rings(Problem tokens, const PoolCall& call, const std::vector<PoolPiece>& pieces);
/// The inputs of such a problem, of a call on pools that has these of its own and of its rings.
void put_behind_rings(Outline& call);

/// A row that the next call may read: of this sequence, where it has that of its tokens; null: nobody's.
struct RingRow {
  std::size_t number;  ///< as above
  const PoolPiece* of;
  std::optional<std::size_t> token;  ///< none: it held before
};
/// Of all slots; not those that are free, as their sequence was folded or never wrote them.
std::vector<RingRow> ring_rows_after(const PoolCall& call);
/// What these rows hold after the call: a tensor of the ring as it was answered (or was), but for these rows.
/// What is written to ring_u nobody says.
tensor::Tensor ring_after(const PoolCall& call, const tensor::Tensor& answered);

}  // namespace kda_check::kda

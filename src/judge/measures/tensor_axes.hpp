// How the flat index of a tensor is read: batch rows, windows of tokens, heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/interruption.hpp"
#include "base/threads/parallel.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::judge {

inline constexpr std::size_t window_tokens = 8;

struct TensorAxes {
  TensorAxes() = default;
  /// `name` selects the axes (kda/schema); a tensor that is not in the list has neither tokens nor heads.
  TensorAxes(std::string_view name, const tensor::Shape& shape, bool state_v_first);

  std::size_t run = 1;  ///< so many elements share a batch row, a token and a head
  std::size_t tokens = 1, heads = 1, token_stride = 0, head_stride = 0, row_stride = 1;
  bool has_tokens = false, has_heads = false;
  std::size_t windows_per_row = 1;

  /// The row of the table of cells that an element belongs to, and the element behind the last of that row.
  std::size_t cell_row(std::size_t element) const;
  std::size_t cell_row_end(std::size_t element) const;
  /// Where the work may be cut at the earliest: no cell has elements before and behind.
  std::size_t cells_end(std::size_t element) const;
  std::size_t token(std::size_t element) const { return has_tokens ? element / token_stride % tokens : 0; }
  std::size_t head(std::size_t element) const { return has_heads ? element / head_stride % heads : 0; }
  /// Calls body(head, at) for the runs of [begin, begin + count), whole ones, those of each head in their
  /// order; heads in parallel.
  template <class Body>
  void over_heads(std::size_t begin, std::size_t count, int threads, const Body& body) const {
    const std::size_t runs = count / run;
    parallel_for(std::min(heads, runs), threads, [&](std::size_t lane, int) {
      const std::size_t of_lane = head(begin + lane * run);
      for (std::size_t i = lane; i < runs; i += heads) {
        check_interruption();
        body(of_lane, begin + i * run);
      }
    });
  }
  /// Numbers the heads of all sequences. `cu_seqlens` is empty where the batch is not packed; states have a
  /// row for each sequence.
  std::size_t strand(std::size_t element, std::span<const std::int64_t> cu_seqlens) const;
};

}  // namespace kda_check::judge

// A problem without its elements: all that decides who can run it, how, and what of it is compared. Known
// from the headers of a file before a tensor is read.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

struct Outline {
  Options options;
  Dimensions dimensions;
  std::vector<std::int64_t> cu_seqlens;  ///< empty: not packed
  /// The inputs that are there, by their names in kda/schema, and their element types.
  std::vector<std::pair<std::string_view, numeric::DType>> inputs;
  bool has_pool = false;  ///< the ordinary form of a call on a pool of states (kda/pool/pool.hpp)

  Outline() = default;
  /// Of a validated problem; implicit, for a problem is more than its outline.
  Outline(const Problem& problem);
  bool operator==(const Outline&) const = default;

  /// Of an input; nullopt for one that is not there.
  std::optional<numeric::DType> dtype_of(std::string_view input) const;
  bool has(std::string_view input) const { return dtype_of(input).has_value(); }
  numeric::DType dtype() const { return *dtype_of("q"); }
  /// The least precise of q, k and v, which products multiply.
  numeric::DType operand_dtype() const;
  bool packed() const { return !cu_seqlens.empty(); }
  bool has_loss() const { return has("do") || has("dht"); }
  std::size_t chunk_size() const { return static_cast<std::size_t>(options.chunk_size); }

  /// The same with q, k, v and do in another element type (with_inputs_rounded_to).
  Outline rounded_to(numeric::DType dtype) const;
};

}  // namespace kda_check::kda

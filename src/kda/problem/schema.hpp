// The tensors of a KDA problem and its answers: names and axes, one row each (docs/file-format.md).
// The reader checks shapes against it, the report names places with it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "kda/terms/options.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::kda {

enum class Axis : unsigned char {
  batch,
  token,
  head,
  value_head,
  key,
  value,
  sequence,
  chunk,
  column,
  decay,     ///< the key channels that have a log decay of their own; no axis where a head has one for all
  strength,  ///< the value channels that have a beta of their own; no axis where a head has one for all
  value_head_decay,
  slot,        ///< of a pool of states, which has as many as it likes (kda/pool/pool.hpp)
  checkpoint,  ///< a state inside a sequence
  ring,        ///< a row of the ring beside a slot, which has as many as it likes (kda/pool/ring.hpp)
  key_block,   ///< rows of a state that share a scale (kda/pool/quantised.hpp)
  value_block  ///< ... and columns
};

enum class TensorGroup : unsigned char { input, output, gradient, stage };

struct TensorSpec {
  std::string_view name;
  TensorGroup group;
  bool required;
  std::array<Axis, 5> axes;
  std::size_t rank;
  bool is_state;  ///< key and value axes swap with state_v_first

  std::span<const Axis> axis_list() const { return {axes.data(), rank}; }
  bool has(Axis axis) const { return std::ranges::find(axis_list(), axis) != axis_list().end(); }
};

std::span<const TensorSpec> tensor_specs();

/// The row of that name, or null. Of the gradient dv and the stage dv, which have the same axes, the
/// gradient.
const TensorSpec* find_spec(std::string_view name);
/// The row of that name in one of these groups, or null.
const TensorSpec* find_spec(std::string_view name, std::initializer_list<TensorGroup> groups);

/// Whether a tensor of that rank can be this one: axes that a problem may lack (`decay`, `strength`) are
/// last.
bool has_rank(const TensorSpec& spec, std::size_t rank);

/// Axes in stored order.
std::array<Axis, 5> stored_axes(const TensorSpec& spec, bool state_v_first);

std::size_t extent(const Dimensions& dimensions, Axis axis);
tensor::Shape expected_shape(const TensorSpec& spec, const Dimensions& dimensions, bool state_v_first);

/// The letter used in places: b t h k v n c j s p r.
char axis_letter(Axis axis);

/// "o[b=0 t=412 h=3 v=17]"; "name[1,2,3]" for a name that is not in the list.
std::string place(std::string_view name, std::span<const std::size_t> index, bool state_v_first);

}  // namespace kda_check::kda

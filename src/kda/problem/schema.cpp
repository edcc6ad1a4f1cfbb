#include "kda/problem/schema.hpp"

#include <algorithm>
#include <utility>

namespace kda_check::kda {

namespace {

using enum Axis;
using enum TensorGroup;

constexpr TensorSpec row(std::string_view name, TensorGroup group, bool required, std::array<Axis, 5> axes,
                         std::size_t rank, bool is_state = false) {
  return {name, group, required, axes, rank, is_state};
}

constexpr TensorSpec specs[] = {
    row("q", input, true, {batch, token, head, key}, 4),
    row("k", input, true, {batch, token, head, key}, 4),
    row("v", input, true, {batch, token, value_head, value}, 4),
    row("g", input, true, {batch, token, value_head, decay}, 4),
    row("beta", input, false, {batch, token, value_head, strength}, 4),
    row("erase", input, false, {batch, token, value_head, key}, 4),
    row("write", input, false, {batch, token, value_head, value}, 4),
    row("A_log", input, false, {value_head}, 1),
    row("dt_bias", input, false, {value_head_decay}, 1),
    row("initial_state", input, false, {sequence, value_head, key, value}, 4, true),
    row("state_pool", input, false, {slot, value_head, key, value}, 4, true),
    row("state_scale", input, false, {slot, value_head, key_block, value_block}, 4, true),
    row("state_source", input, false, {slot, value_head, key, value}, 4, true),
    row("ring_k", input, false, {slot, ring, head, key}, 4),
    row("ring_v", input, false, {slot, ring, value_head, value}, 4),
    row("ring_u", input, false, {slot, ring, value_head, value}, 4),
    row("ring_g", input, false, {slot, ring, value_head, decay}, 4),
    row("ring_beta", input, false, {slot, ring, value_head, strength}, 4),
    row("do", input, false, {batch, token, value_head, value}, 4),
    row("dht", input, false, {sequence, value_head, key, value}, 4, true),
    row("o", output, true, {batch, token, value_head, value}, 4),
    row("final_state", output, false, {sequence, value_head, key, value}, 4, true),
    row("checkpoints", output, false, {checkpoint, value_head, key, value}, 4, true),
    row("state_pool", output, false, {slot, value_head, key, value}, 4, true),
    row("state_scale", output, false, {slot, value_head, key_block, value_block}, 4, true),
    row("ring_k", output, false, {slot, ring, head, key}, 4),
    row("ring_v", output, false, {slot, ring, value_head, value}, 4),
    row("ring_u", output, false, {slot, ring, value_head, value}, 4),
    row("ring_g", output, false, {slot, ring, value_head, decay}, 4),
    row("ring_beta", output, false, {slot, ring, value_head, strength}, 4),
    row("dq", gradient, false, {batch, token, head, key}, 4),
    row("dk", gradient, false, {batch, token, head, key}, 4),
    row("dv", gradient, false, {batch, token, value_head, value}, 4),
    row("dg", gradient, false, {batch, token, value_head, decay}, 4),
    row("dbeta", gradient, false, {batch, token, value_head, strength}, 4),
    row("derase", gradient, false, {batch, token, value_head, key}, 4),
    row("dwrite", gradient, false, {batch, token, value_head, value}, 4),
    row("dinitial_state", gradient, false, {sequence, value_head, key, value}, 4, true),
    row("dA_log", gradient, false, {value_head}, 1),
    row("ddt_bias", gradient, false, {value_head_decay}, 1),
    row("g_cumsum", stage, false, {batch, token, value_head, key}, 4),
    row("Aqk", stage, false, {batch, token, value_head, column}, 4),
    row("Akk_inv", stage, false, {batch, token, value_head, column}, 4),
    row("w", stage, false, {batch, token, value_head, key}, 4),
    row("u", stage, false, {batch, token, value_head, value}, 4),
    row("qg", stage, false, {batch, token, value_head, key}, 4),
    row("kg", stage, false, {batch, token, value_head, key}, 4),
    row("v_new", stage, false, {batch, token, value_head, value}, 4),
    row("h", stage, false, {batch, chunk, value_head, key, value}, 5, true),
    row("dAqk", stage, false, {batch, token, value_head, column}, 4),
    row("dv_local", stage, false, {batch, token, value_head, value}, 4),
    row("dh", stage, false, {batch, chunk, value_head, key, value}, 5, true),
    row("dv", stage, false, {batch, token, value_head, value}, 4),
    row("dw", stage, false, {batch, token, value_head, key}, 4),
    row("dAkk", stage, false, {batch, token, value_head, column}, 4),
};

/// Whether a problem has the axis.
bool has_axis(const Dimensions& d, Axis axis) {
  return (axis != decay || !d.has_scalar_decay) && (axis != Axis::strength || d.strength == Strength::value);
}

}  // namespace

std::span<const TensorSpec> tensor_specs() { return specs; }

const TensorSpec* find_spec(std::string_view name) {
  for (const TensorSpec& spec : specs)
    if (spec.name == name) return &spec;
  return nullptr;
}

const TensorSpec* find_spec(std::string_view name, std::initializer_list<TensorGroup> groups) {
  for (const TensorSpec& spec : specs)
    if (spec.name == name && std::find(groups.begin(), groups.end(), spec.group) != groups.end())
      return &spec;
  return nullptr;
}

bool has_rank(const TensorSpec& spec, std::size_t rank) {
  if (rank == spec.rank) return true;
  const Axis last = spec.axes[spec.rank - 1];
  return rank + 1 == spec.rank && (last == decay || last == Axis::strength);
}

std::array<Axis, 5> stored_axes(const TensorSpec& spec, bool state_v_first) {
  std::array<Axis, 5> axes = spec.axes;
  if (spec.is_state && state_v_first) std::swap(axes[spec.rank - 1], axes[spec.rank - 2]);
  return axes;
}

std::size_t extent(const Dimensions& d, Axis axis) {
  switch (axis) {
    case batch:
      return d.B;
    case token:
      return d.T;
    case head:
      return d.H;
    case value_head:
      return d.HV;
    case key:
      return d.K;
    case value:
      return d.V;
    case sequence:
      return d.N;
    case chunk:
      return d.NT;
    case column:
      return d.C;
    case decay:
      return d.decays();
    case Axis::strength:
      return d.V;
    case value_head_decay:
      return d.HV * d.decays();
    case checkpoint:
      return d.checkpoints;
    case slot:  // the pool's own to say
    case ring:
    case key_block:
    case value_block:
      break;
  }
  return 0;
}

tensor::Shape expected_shape(const TensorSpec& spec, const Dimensions& dimensions, bool state_v_first) {
  const std::array<Axis, 5> axes = stored_axes(spec, state_v_first);
  tensor::Shape shape;
  for (std::size_t axis = 0; axis < spec.rank; ++axis)
    if (has_axis(dimensions, axes[axis])) shape.push_back(extent(dimensions, axes[axis]));
  return shape;
}

char axis_letter(Axis axis) {
  switch (axis) {
    case batch:
      return 'b';
    case token:
      return 't';
    case head:
      return 'h';
    case value_head:
      return 'h';
    case key:
    case key_block:
    case decay:
      return 'k';
    case value:
    case value_block:
    case Axis::strength:
      return 'v';
    case sequence:
      return 'n';
    case chunk:
      return 'c';
    case column:
      return 'j';
    case value_head_decay:
      return 'i';
    case slot:
      return 's';
    case checkpoint:
      return 'p';
    case ring:
      return 'r';
  }
  return '?';
}

std::string place(std::string_view name, std::span<const std::size_t> index, bool state_v_first) {
  const std::size_t slash = name.rfind('/');
  const TensorSpec* const spec = find_spec(slash == std::string_view::npos ? name : name.substr(slash + 1));
  std::string text(name);
  text += '[';
  const bool named = spec != nullptr && has_rank(*spec, index.size());
  const std::array<Axis, 5> axes = named ? stored_axes(*spec, state_v_first) : std::array<Axis, 5>{};
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (axis > 0) text += named ? ' ' : ',';
    if (named) {
      text += axis_letter(axes[axis]);
      text += '=';
    }
    text += std::to_string(index[axis]);
  }
  return text + "]";
}

}  // namespace kda_check::kda

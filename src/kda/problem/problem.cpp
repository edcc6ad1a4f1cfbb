#include "kda/problem/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace kda_check::kda {

namespace {

using tensor::Shape;
using tensor::to_string;

[[noreturn]] void refuse(std::string what, std::string hint = {}) {
  throw Error(ErrorKind::input, std::move(what), {}, std::move(hint));
}

void require_rank(std::string_view name, const Shape& shape, std::size_t rank, std::string_view axes) {
  if (shape.size() != rank)
    refuse(fmt::format("inputs/{} is {}, of rank {}; wanted rank {}: {}", name, to_string(shape),
                       shape.size(), rank, axes));
}

/// `fewer`: the axes of the form that lacks the last one.
void require_rank_of_either(std::string_view name, const Shape& shape, std::string_view axes,
                            std::string_view fewer) {
  if (shape.size() != 3 && shape.size() != 4)
    refuse(fmt::format("inputs/{} is {}, of rank {}; wanted rank 4: {}, or 3: {}", name, to_string(shape),
                       shape.size(), axes, fewer));
}

void require_positive_extents(std::string_view name, const Shape& shape) {
  for (const std::size_t extent : shape)
    if (extent == 0)
      refuse(fmt::format("inputs/{} is {}: an empty extent; wanted at least 1 everywhere", name,
                         to_string(shape)));
}

void require_extent(std::string_view name, const Shape& shape, std::size_t axis, std::string_view symbol,
                    std::size_t wanted, std::string_view source) {
  if (shape[axis] != wanted)
    refuse(
        fmt::format("inputs/{} is {} but {} says {} = {}", name, to_string(shape), source, symbol, wanted));
}

void require_tokens_and_heads(std::string_view name, const Shape& shape, const Dimensions& d) {
  require_positive_extents(name, shape);
  require_extent(name, shape, 0, "B", d.B, "inputs/q");
  require_extent(name, shape, 1, "T", d.T, "inputs/q");
  require_extent(name, shape, 2, "HV", d.HV, "inputs/v");
}

/// What writes are weighed by: beta, or erase and write.
Strength strength_of(const InputShapes& shapes, const Options& options, const Dimensions& d) {
  if (shapes.beta != nullptr && (shapes.erase != nullptr || shapes.write != nullptr))
    refuse(
        fmt::format("inputs/beta and inputs/{} are both there; wanted beta, or erase and write in its place",
                    shapes.erase != nullptr ? "erase" : "write"));
  if (shapes.erase == nullptr && shapes.write == nullptr) {
    if (shapes.beta == nullptr) refuse("inputs/beta is missing");
    const Shape& beta = *shapes.beta;
    require_rank_of_either("beta", beta, "[B,T,HV,V]", "[B,T,HV]");
    require_tokens_and_heads("beta", beta, d);
    if (beta.size() == 3) return Strength::head;
    require_extent("beta", beta, 3, "V", d.V, "inputs/v");
    return Strength::value;
  }
  if (shapes.erase == nullptr) refuse("inputs/erase is missing; wanted it beside inputs/write");
  if (shapes.write == nullptr) refuse("inputs/write is missing; wanted it beside inputs/erase");
  require_rank("erase", *shapes.erase, 4, "[B,T,HV,K]");
  require_rank("write", *shapes.write, 4, "[B,T,HV,V]");
  require_tokens_and_heads("erase", *shapes.erase, d);
  require_tokens_and_heads("write", *shapes.write, d);
  require_extent("erase", *shapes.erase, 3, "K", d.K, "inputs/q");
  require_extent("write", *shapes.write, 3, "V", d.V, "inputs/v");
  if (options.beta_sigmoid)
    refuse(
        "options/beta_sigmoid is 1 but there is no inputs/beta; inputs/erase and inputs/write have no "
        "sigmoid");
  return Strength::gates;
}

void check_cu_seqlens(const std::vector<std::int64_t>& offsets, const Dimensions& d) {
  if (d.B != 1)
    refuse(fmt::format(
        "inputs/cu_seqlens is present but inputs/q says B = {}; wanted B = 1 for a packed batch", d.B));
  if (offsets.size() < 2)
    refuse(fmt::format("inputs/cu_seqlens has {} entries; wanted N + 1 >= 2", offsets.size()));
  if (offsets.front() != 0) refuse(fmt::format("inputs/cu_seqlens starts at {}; wanted 0", offsets.front()));
  for (std::size_t n = 1; n < offsets.size(); ++n)
    if (offsets[n] < offsets[n - 1])
      refuse(fmt::format("inputs/cu_seqlens decreases from {} to {} at entry {}; wanted non-decreasing",
                         offsets[n - 1], offsets[n], n));
  if (offsets.back() != static_cast<std::int64_t>(d.T))
    refuse(fmt::format("inputs/cu_seqlens ends at {} but inputs/q says T = {}", offsets.back(), d.T));
}

}  // namespace

std::string_view name_of(Gate gate) {
  switch (gate) {
    case Gate::none:
      return "none";
    case Gate::softplus:
      return "softplus";
    case Gate::lower_bound:
      break;
  }
  return "lower_bound";
}

Dimensions dimensions_from(const InputShapes& shapes, const Options& options,
                           const std::vector<std::int64_t>& cu_seqlens) {
  const Shape &q = *shapes.q, &k = *shapes.k, &v = *shapes.v, &g = *shapes.g;
  require_rank("q", q, 4, "[B,T,H,K]");
  require_rank("k", k, 4, "[B,T,H,K]");
  require_rank("v", v, 4, "[B,T,HV,V]");
  require_rank_of_either("g", g, "[B,T,HV,K]", "[B,T,HV]");
  require_positive_extents("q", q);
  require_positive_extents("k", k);
  require_positive_extents("v", v);
  Dimensions d;
  d.B = q[0], d.T = q[1], d.H = q[2], d.K = q[3], d.HV = v[2], d.V = v[3];
  if (k != q)
    refuse(
        fmt::format("inputs/k is {} but inputs/q is {}; wanted the same shape", to_string(k), to_string(q)));
  require_extent("v", v, 0, "B", d.B, "inputs/q");
  require_extent("v", v, 1, "T", d.T, "inputs/q");
  if (d.HV % d.H != 0)
    refuse(
        fmt::format("inputs/v is {}: HV = {} is no multiple of H = {} of inputs/q", to_string(v), d.HV, d.H));
  require_tokens_and_heads("g", g, d);
  d.has_scalar_decay = g.size() == 3;
  if (!d.has_scalar_decay) require_extent("g", g, 3, "K", d.K, "inputs/q");
  d.strength = strength_of(shapes, options, d);
  if (!cu_seqlens.empty()) check_cu_seqlens(cu_seqlens, d);
  d.N = cu_seqlens.empty() ? d.B : cu_seqlens.size() - 1;
  d.C = static_cast<std::size_t>(options.chunk_size);
  if (cu_seqlens.empty()) {
    d.NT = (d.T + d.C - 1) / d.C;
  } else {
    for (std::size_t n = 1; n < cu_seqlens.size(); ++n)
      d.NT += (static_cast<std::size_t>(cu_seqlens[n] - cu_seqlens[n - 1]) + d.C - 1) / d.C;
  }
  return d;
}

void check_shape(std::string_view name, std::string_view object, const Shape& shape,
                 const Dimensions& dimensions, bool state_v_first) {
  const TensorSpec* const spec = find_spec(name);
  if (spec == nullptr) return;
  const auto is_own_to_say = [&](Axis axis) {
    return axis == Axis::slot || axis == Axis::ring || axis == Axis::key_block || axis == Axis::value_block;
  };
  const auto wanted_in = [&](bool v_first) {
    Shape wanted = expected_shape(*spec, dimensions, v_first);
    for (std::size_t axis = 0; axis < std::min(shape.size(), wanted.size()); ++axis)
      if (is_own_to_say(spec->axes[axis])) wanted[axis] = std::max<std::size_t>(1, shape[axis]);
    return wanted;
  };
  const Shape wanted = wanted_in(state_v_first);
  if (shape == wanted) return;
  if (spec->axes[0] == Axis::value_head_decay && shape == Shape{dimensions.HV, dimensions.decays()}) return;
  if (spec->is_state && shape == wanted_in(!state_v_first))
    refuse(fmt::format("{} is {}, the other state layout; options/state_v_first = {} wants {}", object,
                       to_string(shape), state_v_first ? 1 : 0, to_string(wanted)),
           fmt::format("set state_v_first to {} or transpose the states", state_v_first ? 0 : 1));
  refuse(fmt::format("{} is {}; wanted {} from the shapes of q and v", object, to_string(shape),
                     to_string(wanted)));
}

void check_options(const Options& options, bool has_A_log) {
  if (options.chunk_size < 1)
    refuse(fmt::format("options/chunk_size is {}; wanted at least 1", options.chunk_size));
  if (options.scale && !std::isfinite(*options.scale))
    refuse(fmt::format("options/scale is {}; wanted a finite number", *options.scale));
  if (options.gate == Gate::softplus && !has_A_log)
    refuse("options/gate is softplus but inputs/A_log is missing",
           "add A_log [HV]; exp(A_log) multiplies the softplus");
  if (options.gate == Gate::lower_bound && !options.lower_bound)
    refuse("options/gate is lower_bound but options/lower_bound is missing",
           "add the attribute lower_bound, e.g. -5");
  if (options.lower_bound && !(std::isfinite(*options.lower_bound) && *options.lower_bound < 0) &&
      options.gate == Gate::lower_bound)
    refuse(fmt::format("options/lower_bound is {}; wanted a negative number", *options.lower_bound));
  if (options.allow_neg_eigval && !options.beta_sigmoid)
    refuse(
        "options/allow_neg_eigval is 1 but options/beta_sigmoid is 0; the factor 2 belongs to the sigmoid");
}

void Problem::validate() {
  check_options(options, A_log.has_value());
  const auto shape = [](const auto& tensor) { return tensor ? &tensor->shape() : nullptr; };
  dimensions_ = dimensions_from({&q.shape(), &k.shape(), &v.shape(), &g.shape(),
                                 beta.shape().empty() ? nullptr : &beta.shape(), shape(erase), shape(write)},
                                options, cu_seqlens);
  for (const InputSlot& slot : input_slots)
    if (const tensor::Tensor* const tensor = slot.of(*this))
      check_shape(slot.name, fmt::format("inputs/{}", slot.name), tensor->shape(), dimensions_,
                  options.state_v_first);
  dimensions_.checkpoints = checkpoints.size();
  in_order_.resize(checkpoints.size());
  if (checkpoints.empty()) return;
  check_checkpoints(checkpoints, sequences());
  std::iota(in_order_.begin(), in_order_.end(), std::size_t{0});
  std::ranges::stable_sort(in_order_, {}, [&](std::size_t row) { return checkpoints[row]; });
}

double Problem::scale() const {
  return options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.shape().back())));
}

std::vector<Sequence> Problem::sequences() const { return sequences_of(dimensions_, cu_seqlens); }

std::size_t Problem::first_checkpoint(std::size_t sequence, std::size_t tokens) const {
  return static_cast<std::size_t>(
      std::ranges::lower_bound(in_order_, Checkpoint{sequence, tokens}, {},
                               [&](std::size_t row) { return checkpoints[row]; }) -
      in_order_.begin());
}

std::size_t Problem::next_state(const Sequence& sequence, std::size_t tokens) const {
  if (in_order_.empty()) return sequence.length();
  const std::size_t next = first_checkpoint(sequence.index, tokens + 1);
  if (next == in_order_.size() || checkpoints[in_order_[next]].sequence != sequence.index)
    return sequence.length();
  return checkpoints[in_order_[next]].tokens;
}

bool Problem::has_state(const Sequence& sequence, std::size_t tokens) const {
  bool found = tokens == sequence.length();
  for_checkpoints(sequence.index, tokens, [&](std::size_t) { found = true; });
  return found;
}

void check_checkpoints(const std::vector<Checkpoint>& checkpoints, const std::vector<Sequence>& sequences) {
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    const auto& [sequence, tokens] = checkpoints[i];
    if (sequence >= sequences.size())
      refuse(fmt::format("inputs/checkpoint_sequence[{}] is {}; wanted 0..{}, the sequences of the problem",
                         i, sequence, sequences.size() - 1));
    if (tokens > sequences[sequence].length())
      refuse(fmt::format("inputs/checkpoint_tokens[{}] is {} but sequence {} has {} tokens", i, tokens,
                         sequence, sequences[sequence].length()),
             "tokens are counted from the start of their sequence");
  }
}

std::vector<Checkpoint> checkpoints_every(std::size_t every, CheckpointSide side,
                                          const std::vector<Sequence>& sequences) {
  std::vector<Checkpoint> list;
  for (const Sequence& sequence : sequences) {
    const std::size_t first = side == CheckpointSide::before ? 0 : every,
                      end = side == CheckpointSide::before ? sequence.length() : sequence.length() + 1;
    for (std::size_t at = first; at < end; at += every) list.push_back({sequence.index, at});
  }
  return list;
}

std::vector<Sequence> sequences_of(const Dimensions& dimensions,
                                   const std::vector<std::int64_t>& cu_seqlens) {
  std::vector<Sequence> list;
  if (cu_seqlens.empty()) {
    for (std::size_t b = 0; b < dimensions.B; ++b) list.push_back({b, b, 0, dimensions.T});
  } else {
    for (std::size_t n = 0; n + 1 < cu_seqlens.size(); ++n)
      list.push_back(
          {n, 0, static_cast<std::size_t>(cu_seqlens[n]), static_cast<std::size_t>(cu_seqlens[n + 1])});
  }
  return list;
}

const tensor::Tensor* InputSlot::of(const Problem& problem) const {
  if (required != nullptr) return (problem.*required).empty() ? nullptr : &(problem.*required);
  return problem.*optional ? &*(problem.*optional) : nullptr;
}

void InputSlot::set(Problem& problem, tensor::Tensor tensor) const {
  if (required != nullptr)
    problem.*required = std::move(tensor);
  else
    problem.*optional = std::move(tensor);
}

std::vector<const tensor::Tensor*> inputs_of(const Problem& problem) {
  std::vector<const tensor::Tensor*> list;
  for (const InputSlot& slot : input_slots)
    if (const tensor::Tensor* const tensor = slot.of(problem)) list.push_back(tensor);
  return list;
}

Problem with_inputs(const Problem& problem,
                    const std::function<tensor::Tensor(const InputSlot&, const tensor::Tensor&)>& changed) {
  Problem copy;
  copy.options = problem.options;
  copy.cu_seqlens = problem.cu_seqlens;
  copy.checkpoints = problem.checkpoints;
  for (const InputSlot& slot : input_slots)
    if (const tensor::Tensor* const tensor = slot.of(problem)) slot.set(copy, changed(slot, *tensor));
  copy.validate();
  return copy;
}

Problem clone(const Problem& problem) {
  return with_inputs(problem, [](const InputSlot&, const tensor::Tensor& tensor) { return tensor.clone(); });
}

}  // namespace kda_check::kda

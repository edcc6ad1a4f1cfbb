// One KDA problem: shapes, inputs, options. Formulas: docs/kda.md; layout:
// docs/file-format.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kda/problem/schema.hpp"
#include "kda/terms/options.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::kda {

struct PoolCall;

/// A state inside a sequence that is asked for: the one behind so many of its tokens.
struct Checkpoint {
  std::size_t sequence = 0, tokens = 0;
  auto operator<=>(const Checkpoint&) const = default;
};

struct Problem {
  Options options;
  tensor::Tensor q, k, v, g;
  tensor::Tensor beta;  ///< empty where erase and write stand in its place
  std::optional<tensor::Tensor> erase, write;
  std::optional<tensor::Tensor> A_log, dt_bias, initial_state;
  /// What the backward pass starts from, do and dht: the loss is <o, do> + <final_state, dht>, and what is
  /// missing counts as zero.
  std::optional<tensor::Tensor> output_gradient, state_gradient;
  std::vector<std::int64_t> cu_seqlens;  ///< empty: not packed
  std::vector<Checkpoint> checkpoints;   ///< in the order of the tensor
  /// The call on a pool of states that this is the ordinary form of (kda/pool/pool.hpp); null: of none.
  std::shared_ptr<const PoolCall> pool;

  /// Checks everything a kernel relies on; throws Error{input} naming the tensor, what it is and what was
  /// wanted. Call it once, before anything else.
  void validate();

  const Dimensions& dimensions() const { return dimensions_; }
  numeric::DType dtype() const { return q.dtype(); }
  double scale() const;
  bool packed() const { return !cu_seqlens.empty(); }
  bool has_loss() const { return output_gradient || state_gradient; }
  /// beta, or the erase gate, is stored in bf16 or fp16 and used as it is: kernels then multiply in that
  /// format.
  bool beta_is_16_bit() const {
    const tensor::Tensor& weights = beta.empty() ? *erase : beta;
    return !options.beta_sigmoid && numeric::format_of(weights.dtype()).bytes == 2;
  }
  std::vector<Sequence> sequences() const;
  /// Calls body(row) for the rows of the tensor checkpoints that are the state behind so many tokens.
  template <class Body>
  void for_checkpoints(std::size_t sequence, std::size_t tokens, const Body& body) const {
    for (std::size_t i = first_checkpoint(sequence, tokens); i < in_order_.size(); ++i) {
      if (checkpoints[in_order_[i]] != Checkpoint{sequence, tokens}) return;
      body(in_order_[i]);
    }
  }
  /// The next number of tokens, above `tokens`, behind which a state of a sequence is asked for: the final
  /// one at last.
  std::size_t next_state(const Sequence& sequence, std::size_t tokens) const;
  /// Whether one is, behind so many.
  bool has_state(const Sequence& sequence, std::size_t tokens) const;
  std::size_t heads_per_group() const { return dimensions_.HV / dimensions_.H; }

 private:
  /// In `in_order_`: the first that is not before this one.
  std::size_t first_checkpoint(std::size_t sequence, std::size_t tokens) const;

  Dimensions dimensions_;
  std::vector<std::size_t> in_order_;  ///< rows of the tensor checkpoints, by sequence and tokens
};

/// Throws Error{input} for a checkpoint of tokens or a sequence that is not there.
void check_checkpoints(const std::vector<Checkpoint>& checkpoints, const std::vector<Sequence>& sequences);

/// Every so many tokens of all sequences: the states before every block of tokens, a shorter last one too, or
/// behind every whole one.
enum class CheckpointSide : std::uint8_t { before, after };
std::vector<Checkpoint> checkpoints_every(std::size_t every, CheckpointSide side,
                                          const std::vector<Sequence>& sequences);

/// Those of a batch of these sizes, packed or not.
std::vector<Sequence> sequences_of(const Dimensions& dimensions, const std::vector<std::int64_t>& cu_seqlens);

/// An input of a problem, by its name in kda/schema.
struct InputSlot {
  std::string_view name;
  tensor::Tensor Problem::*required;                 ///< null for an optional one; it is missing where empty
  std::optional<tensor::Tensor> Problem::*optional;  ///< null for the others
  bool is_rounded = false;                           ///< by with_inputs_rounded_to (kda/pool/pool.hpp)

  /// Null where it is missing.
  const tensor::Tensor* of(const Problem& problem) const;
  void set(Problem& problem, tensor::Tensor tensor) const;
};
/// All of them, in the order of kda/schema.
inline constexpr InputSlot input_slots[] = {{"q", &Problem::q, nullptr, true},
                                            {"k", &Problem::k, nullptr, true},
                                            {"v", &Problem::v, nullptr, true},
                                            {"g", &Problem::g, nullptr},
                                            {"beta", &Problem::beta, nullptr},
                                            {"erase", nullptr, &Problem::erase},
                                            {"write", nullptr, &Problem::write},
                                            {"A_log", nullptr, &Problem::A_log},
                                            {"dt_bias", nullptr, &Problem::dt_bias},
                                            {"initial_state", nullptr, &Problem::initial_state},
                                            {"do", nullptr, &Problem::output_gradient, true},
                                            {"dht", nullptr, &Problem::state_gradient}};

/// The inputs of a problem that are there, in that order.
std::vector<const tensor::Tensor*> inputs_of(const Problem& problem);

/// The same problem, each input of which is what `changed` makes of its slot and the tensor in it.
Problem with_inputs(const Problem& problem,
                    const std::function<tensor::Tensor(const InputSlot&, const tensor::Tensor&)>& changed);

/// Sizes from the shapes of the inputs alone, before any data is read. Throws Error{input}.
struct InputShapes {
  const tensor::Shape *q, *k, *v, *g;
  const tensor::Shape *beta, *erase, *write;  ///< null: missing
};
Dimensions dimensions_from(const InputShapes& shapes, const Options& options,
                           const std::vector<std::int64_t>& cu_seqlens);

/// Throws Error{input} unless `shape` is what the tensor `name` must have; `object` is how the message calls
/// it.
void check_shape(std::string_view name, std::string_view object, const tensor::Shape& shape,
                 const Dimensions& dimensions, bool state_v_first);

/// Throws Error{input} for options that contradict each other or lack what they need.
void check_options(const Options& options, bool has_A_log);

/// A problem whose tensors are shared by nobody: a deep copy. It is no call on a pool any more.
Problem clone(const Problem& problem);

}  // namespace kda_check::kda

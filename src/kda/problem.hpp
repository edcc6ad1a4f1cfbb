// One KDA problem: shapes, inputs, options. Formulas: docs/kda.md; layout:
// docs/fixture-format.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kda/options.hpp"
#include "kda/schema.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::kda {

struct Problem {
  Options options;
  tensor::Tensor q, k, v, g, beta;
  std::optional<tensor::Tensor> A_log, dt_bias, initial_state;
  /// What the backward pass starts from, do and dht: the loss is <o, do> + <final_state, dht>, and what is
  /// missing counts as zero.
  std::optional<tensor::Tensor> output_gradient, state_gradient;
  std::vector<std::int64_t> cu_seqlens;  ///< empty: not packed

  /// Checks everything a kernel relies on; throws Error{input} naming the tensor, what it is and what was
  /// wanted. Call it once, before anything else.
  void validate();

  const Dimensions& dimensions() const { return dimensions_; }
  numeric::DType dtype() const { return q.dtype(); }
  double scale() const;
  bool packed() const { return !cu_seqlens.empty(); }
  bool has_loss() const { return output_gradient || state_gradient; }
  /// beta is stored in bf16 or fp16 and used as it is: kernels then multiply in that format.
  bool beta_is_16_bit() const { return !options.beta_sigmoid && numeric::format_of(beta.dtype()).bytes == 2; }
  std::vector<Sequence> sequences() const;
  std::size_t heads_per_group() const { return dimensions_.HV / dimensions_.H; }

 private:
  Dimensions dimensions_;
};

/// Sizes from the shapes of the inputs alone, before any data is read. `state` may be null. Throws
/// Error{input}.
struct InputShapes {
  const tensor::Shape *q, *k, *v, *g, *beta;
};
Dimensions dimensions_from(const InputShapes& shapes, const Options& options,
                           const std::vector<std::int64_t>& cu_seqlens);

/// Throws Error{input} unless `shape` is what the tensor `name` must have; `object` is how the message calls
/// it.
void check_shape(std::string_view name, std::string_view object, const tensor::Shape& shape,
                 const Dimensions& dimensions, bool state_v_first);

/// Throws Error{input} for options that contradict each other or lack what they need.
void check_options(const Options& options, bool has_A_log);

/// The same problem with q, k, v and do rounded to `dtype`; gates, beta, parameters and states stay as they
/// are.
/// What the rounding costs is then part of the problem, not charged to whoever solves it.
Problem with_inputs_rounded_to(const Problem& problem, numeric::DType dtype);

/// A problem whose tensors are shared by nobody: a deep copy.
Problem clone(const Problem& problem);

}  // namespace kda_check::kda

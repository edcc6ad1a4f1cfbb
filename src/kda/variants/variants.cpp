#include "kda/variants/variants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/gpu/device.hpp"
#include "kda/variants/outer_call.hpp"

namespace kda_check::kda {

namespace {

std::string always_available() { return {}; }
std::string cpu_unsupported(const Outline& problem, const RunOptions& options) {
  if (options.arithmetic.scale == ScaledPart::before && problem.options.qk_l2norm)
    return "scale=before is on q as it is stored, and here its norm comes first";
  return unsupported(options.arithmetic, options.dtype);
}
std::string no_chunk_form(const Outline& problem) {
  if (problem.dimensions.strength != Strength::value) return {};
  return "with a beta for each column of V every column has an inverse of its own: no chunk form";
}
std::string chunk_unsupported(const Outline& problem, const RunOptions& options) {
  const Dimensions& d = problem.dimensions;
  if (std::string reason = no_chunk_form(problem); !reason.empty()) return reason;
  if (d.has_scalar_decay && is_triton(options.arithmetic.reduction))
    return "reduction=triton and triton-rows are the orders of KDA's and GDN-2's chunk kernels";
  if (d.strength == Strength::gates && options.arithmetic.beta == BetaPart::keys)
    return "beta=keys is one number a token, and there are gates in its place";
  return cpu_unsupported(problem, options);
}

/// As PyTorch evaluates it: multiplications and additions are separate operations.
Arithmetic naive_arithmetic(const Outline&, numeric::DType) {
  Arithmetic arithmetic;
  arithmetic.contraction = Contraction::separate;
  return arithmetic;
}

/// The recurrence, with beta on the key.
Answer run_naive(const Problem& problem, RunOptions options) {
  options.arithmetic.beta = BetaPart::keys;
  return run_recurrent(problem, options);
}
GradientTensors run_naive_backward(const Problem& problem, RunOptions options) {
  options.arithmetic.beta = BetaPart::keys;
  return run_recurrent_backward(problem, options);
}

Arithmetic recurrent_arithmetic(const Outline&, numeric::DType) { return {}; }

/// The forms FLA picks: anchored diagonal blocks with safe_gate, pairwise ones without; the blocked inverse
/// where its cast points are asked for, plain substitution where nothing is rounded.
Arithmetic chunk_arithmetic(const Outline& problem, numeric::DType dtype) {
  Arithmetic arithmetic;
  arithmetic.decay = problem.options.safe_gate ? DecayForm::anchor_mid : DecayForm::anchor_pair;
  const bool narrow = dtype == numeric::DType::bf16 || dtype == numeric::DType::fp16;
  arithmetic.inverse = narrow ? InverseForm::blocks : InverseForm::substitution;
  return arithmetic;
}

/// The GPU's row of a CPU variant, whose words make that one do the same. In fp64 `cuda` is CUDA's exp.
template <bool chunk>
Variant on_gpu(std::string_view name, std::string_view summary) {
  return {name,
          summary,
          "gpu",
          {.chunk = chunk},
          [](const Outline& problem, numeric::DType dtype) {
            Arithmetic arithmetic = (chunk ? chunk_arithmetic : recurrent_arithmetic)(problem, dtype);
            set_axis(arithmetic, "h100");
            return arithmetic;
          },
          gpu_unavailable,
          [](const Outline& problem, const RunOptions& options) {
            const std::string reason = chunk ? no_chunk_form(problem) : std::string();
            return reason.empty() ? gpu_unsupported(chunk, problem, options) : reason;
          },
          [](const Problem& problem, const RunOptions& options) { return run_gpu(chunk, problem, options); },
          [](const Problem& problem, const RunOptions& options) {
            return run_gpu_backward(chunk, problem, options);
          },
          chunk ? "chunk" : "recurrent",
          [](const Problem& problem, const RunOptions& options, int repeats) {
            return time_gpu(chunk, problem, options, repeats);
          },
          [](const Problem& problem, const RunOptions& options, int repeats) {
            return time_gpu_backward(chunk, problem, options, repeats);
          }};
}

using numeric::ComputeFormat;

ComputeFormat format_of(Rounding rounding, ComputeFormat unrounded) {
  switch (rounding) {
    case Rounding::bf16:
      return ComputeFormat::bf16;
    case Rounding::fp16:
      return ComputeFormat::fp16;
    case Rounding::tf32:
      return ComputeFormat::tf32;
    case Rounding::none:
      break;
  }
  return unrounded;
}

}  // namespace

std::span<const Variant> variants() {
  static const Variant list[] = {
      {"naive",
       "the definition, token by token",
       "cpu",
       {.chunk = false},
       naive_arithmetic,
       always_available,
       cpu_unsupported,
       run_naive,
       run_naive_backward},
      {"recurrent",
       "the fused order of the decode kernels",
       "cpu",
       {.chunk = false},
       recurrent_arithmetic,
       always_available,
       cpu_unsupported,
       run_recurrent,
       run_recurrent_backward},
      {"chunk",
       "the staged WY form, chunk by chunk",
       "cpu",
       {.chunk = true},
       chunk_arithmetic,
       always_available,
       chunk_unsupported,
       run_chunk,
       run_chunk_backward},
      on_gpu<false>("gpu-recurrent", "recurrent, a warp for each four columns"),
      on_gpu<true>("gpu-chunk", "chunk, a thread for each sum"),
  };
  return list;
}

const Variant& variant_named(std::string_view name, std::span<const Variant> among) {
  std::vector<std::string> names;
  for (const Variant& variant : among) {
    if (variant.name == name) return variant;
    names.emplace_back(variant.name);
  }
  throw Error(ErrorKind::usage, fmt::format("no variant '{}'", name), {}, suggest(name, names));
}

std::string device_of(const Variant& variant) {
  std::string name = is_on_gpu(variant) ? gpu_device_name() : std::string();
  return name.empty() ? std::string(variant.device) : name;
}

numeric::ComputeFormat compute_format(const Variant& variant, numeric::DType dtype,
                                      const Arithmetic& arithmetic, bool backward) {
  const bool narrow = dtype == numeric::DType::bf16 || dtype == numeric::DType::fp16;
  const ComputeFormat whole = narrow ? ComputeFormat::fp32 : numeric::compute_of(dtype);
  const ComputeFormat cast = format_of(
      coarsest_cast(cast_points(arithmetic, dtype, false, variant.axes.chunk), variant.axes.chunk, backward),
      whole);
  const auto coarser = [](ComputeFormat a, ComputeFormat b) {
    return numeric::row_of(a).operand_error > numeric::row_of(b).operand_error ? a : b;
  };
  const bool rounds_outside =
      arithmetic.scale == ScaledPart::before || (backward && arithmetic.heads == Heads::repeated);
  const ComputeFormat within = rounds_outside ? coarser(cast, numeric::compute_of(dtype)) : cast;
  if (variant.axes.chunk || arithmetic.stored == StoredState{}) return within;
  return coarser(within,
                 arithmetic.stored.format == StateFormat::fp16 ? ComputeFormat::fp16 : ComputeFormat::bf16);
}

Tensors run_pass(Pass pass, const Variant& variant, const Problem& problem, const RunOptions& options) {
  if (const std::optional<OuterCall> outer = outer_call(problem, options, pass))
    return outer->results(run_pass(pass, variant, outer->problem, outer->options));
  if (pass == Pass::forward) return by_name(variant.run(problem, options));
  Tensors tensors;
  GradientTensors gradients_of_run = variant.run_backward(problem, options);
  for (const GradientRow& row : gradients())
    if (tensor::Tensor& held = gradients_of_run[static_cast<std::size_t>(row.gradient)]; !held.empty())
      tensors.emplace(row.name, std::move(held));
  return tensors;
}

}  // namespace kda_check::kda

// The variants: one row each. To add one, write its run function and add a row in variants.cpp.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kda/problem/gradients.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::kda {

struct Variant {
  std::string_view name;
  std::string_view summary;
  std::string_view device;
  ArithmeticAxes axes;
  /// What this variant does when nothing else is asked.
  Arithmetic (*default_arithmetic)(const Outline& problem, numeric::DType dtype);
  /// Empty when it can run here and now, else why not.
  std::string (*unavailable)();
  /// Empty when it has this arithmetic and shape, else what it lacks.
  std::string (*unsupported)(const Outline& problem, const RunOptions& options);
  /// Throws Error{environment} when it would need more memory than the options allow.
  std::function<Answer(const Problem& problem, const RunOptions& options)> run;
  /// The gradients of a problem with a loss. Null: this variant has no backward pass. Throws as run() does.
  std::function<GradientTensors(const Problem& problem, const RunOptions& options)> run_backward = nullptr;
  /// The CPU variant that gives the same bits under the same arithmetic; empty for those on the CPU.
  std::string_view replay = {};
  /// Seconds of each of `repeats` runs, forwards and backwards, by the device's own clock, without what it
  /// costs to get there. Null: a clock around the run says it.
  std::vector<double> (*time)(const Problem& problem, const RunOptions& options, int repeats) = nullptr;
  std::vector<double> (*time_backward)(const Problem& problem, const RunOptions& options,
                                       int repeats) = nullptr;
};

std::span<const Variant> variants();

/// Throws Error{usage} with a suggestion for a name that is not in the list.
const Variant& variant_named(std::string_view name, std::span<const Variant> among = variants());

/// A row of the list, not another under its own name.
inline bool is_ours(const Variant& variant) {
  for (const Variant& row : variants())
    if (row.name == variant.name) return true;
  return false;
}
inline bool is_on_gpu(const Variant& variant) { return variant.device == "gpu"; }
/// What a report calls the device of a variant: "cpu"; "NVIDIA H100 80GB HBM3", "gpu" where there is none.
std::string device_of(const Variant& variant);

/// The coarsest precision of the stages a variant goes through in this run, forwards or (those too)
/// backwards: what its error is judged by.
numeric::ComputeFormat compute_format(const Variant& variant, numeric::DType dtype,
                                      const Arithmetic& arithmetic, bool backward = false);

/// A variant that has the pass, run once. Throws as run() does.
Tensors run_pass(Pass pass, const Variant& variant, const Problem& problem, const RunOptions& options);

// The run functions.
Answer run_recurrent(const Problem& problem, const RunOptions& options);
Answer run_chunk(const Problem& problem, const RunOptions& options);
GradientTensors run_recurrent_backward(const Problem& problem, const RunOptions& options);
GradientTensors run_chunk_backward(const Problem& problem, const RunOptions& options);

// The GPU variants, and what they say of themselves. `chunk`: gpu-chunk, else gpu-recurrent.
Answer run_gpu(bool chunk, const Problem& problem, const RunOptions& options);
GradientTensors run_gpu_backward(bool chunk, const Problem& problem, const RunOptions& options);
std::string gpu_unsupported(bool chunk, const Outline& problem, const RunOptions& options);
std::vector<double> time_gpu(bool chunk, const Problem& problem, const RunOptions& options, int repeats);
std::vector<double> time_gpu_backward(bool chunk, const Problem& problem, const RunOptions& options,
                                      int repeats);

}  // namespace kda_check::kda

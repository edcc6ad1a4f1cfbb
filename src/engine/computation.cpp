#include "engine/computation.hpp"

#include <algorithm>

#include "base/names.hpp"
#include "hypotheses/licence.hpp"

namespace kda_check::engine {

namespace {

using hypotheses::Hypothesis;
using hypotheses::Identity;
using hypotheses::Licence;

bool is_narrow(numeric::DType dtype) { return numeric::format_of(dtype).bytes <= 2; }

bool has_narrow_states(const Answered& output, const kda::Problem& problem) {
  const tensor::Tensor* const final_state = output.tensor("final_state");
  return problem.pool != nullptr || (problem.initial_state && is_narrow(problem.initial_state->dtype())) ||
         (final_state != nullptr && is_narrow(final_state->dtype()));
}

/// A computation in these settings.
Hypothesis said_by(const Answered& output, std::string_view variant) {
  Hypothesis said;
  said.variant = &kda::variant_named(variant);
  said.pass = output.pass;
  said.options.dtype = output.dtype;
  said.options.chunk_size = output.said.chunk_size != 0 ? output.said.chunk_size : output.chunk_size;
  said.options.arithmetic = output.said.arithmetic;
  return said;
}

}  // namespace

Computation computation_of_variant(const Answered& output, const kda::Problem& problem) {
  Computation known;
  known.hypothesis = said_by(output, output.form == judge::Form::chunk ? "chunk" : "recurrent");
  // The class is that of what may be rounded.
  const bool narrow_states = has_narrow_states(output, problem);
  const Hypothesis without = hypotheses::licensed(
      *known.hypothesis, {numeric::ComputeFormat::bf16, output.dtype, narrow_states}, problem);
  const Licence licence{kda::compute_format(*without.variant, output.dtype, without.options.arithmetic,
                                            output.pass == kda::Pass::backward),
                        output.dtype, narrow_states};
  known.licensed = hypotheses::licensed(*known.hypothesis, licence, problem);
  return known;
}

Computation identified_computation(const Answered& output, const kda::Problem& problem,
                                   const Hypothesis* forward, const hypotheses::SearchSettings& settings) {
  Computation known;
  if (output.compute == numeric::ComputeFormat::fp64 || output.dtype == numeric::DType::fp64) return known;
  const Licence licence{output.compute, output.dtype, has_narrow_states(output, problem)};
  hypotheses::SearchSettings search = settings;
  search.forward = forward;
  search.licence = licence;
  const Hypothesis declared = said_by(output, "chunk");
  if (!(output.said.arithmetic == kda::Arithmetic{}) || output.chunk_size != Answered{}.chunk_size)
    search.declared = &declared;
  const hypotheses::RecordedOutput recorded(problem, output.pass, output.tensors, output.dtype);
  const hypotheses::Identification found = hypotheses::identify(recorded, output.dtype, search);
  // Where a little is left everywhere, it may be all of it somewhere.
  constexpr double most_left = 0.04, whole_from = 0.999, near_from = 0.5;
  const double least = std::min(found.explained, found.again.value_or(1));
  // What is not held against it, it may err by.
  const auto licensed = [&] {
    return found.is_licensed ? found.hypothesis : hypotheses::licensed(found.hypothesis, licence, problem);
  };
  if (!found.gives_most && (found.end != Identity::identified || found.left > most_left)) {
    if (!settings.starts_only && least >= near_from) known.licensed = licensed();
    return known;
  }
  known.gives_most = found.gives_most;
  known.is_whole = least >= whole_from;
  known.is_exact = known.is_whole && found.differing == 0;
  known.hypothesis = found.hypothesis;
  known.licensed = licensed();
  known.left = found.gives_most ? 0 : found.left;
  known.text = hypotheses::text_of(found.hypothesis, problem);
  const kda::Special special = found.hypothesis.options.arithmetic.special;
  if (problem.options.gate == kda::Gate::softplus && special != kda::Special::ieee &&
      special != kda::Special::triton_logf)
    known.text += ", softplus as log2(1 + 2^x) by lg2.approx";  // docs/explain.md
  known.unlicensed = join(found.unlicensed, ", ");
  known.is_as_declared =
      found.is_as_declared || output.said.arithmetic == kda::Arithmetic{};  // chunks are a problem's
  return known;
}

}  // namespace kda_check::engine

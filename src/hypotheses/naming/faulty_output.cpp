#include "hypotheses/naming/faulty_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.hpp"
#include "base/names.hpp"
#include "hypotheses/hypothesis.hpp"
#include "hypotheses/naming/conditions.hpp"
#include "kda/bounds/log_decays.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;
using kda::RunOptions;
using numeric::DType;
using tensor::Tensor;

/// A token of the longest sequence that is not its first, nor at the edge of a chunk.
std::size_t middle_token(const Problem& problem) {
  const std::vector<kda::Sequence> sequences = problem.sequences();
  const kda::Sequence& longest = *std::ranges::max_element(sequences, {}, &kda::Sequence::length);
  const auto middle = static_cast<std::size_t>(0.53 * static_cast<double>(longest.length()));
  return longest.begin + std::min(middle, std::max<std::size_t>(2, longest.length()) - 2);
}

/// healthy + (wrong - right), rounded once to its element type: its own rounding errors are all there.
Tensor with_difference(const Tensor& healthy, const Tensor& wrong, const Tensor& right, DType dtype) {
  Tensor tensor(healthy.name(), dtype, healthy.shape());
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const double difference = wrong.value(i) == right.value(i) ? 0 : wrong.value(i) - right.value(i);
    tensor.set(i, healthy.value(i) + difference);
  }
  return tensor;
}

template <class Rows>
auto* row_named(const Rows& rows, std::string_view name) {
  const auto found = std::ranges::find_if(rows, [&](const auto& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

NamedFault fault_named(const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  NamedFault found{row_named(faults(), name), row_named(gradient_faults(), name),
                   row_named(pool_faults(), name)};
  for (const plain::MovedMatrix& moved : plain::moved_matrices(false, true))
    if (found.of_output == nullptr && moved.name() == name) found.of_matrix = moved;
  if (!found.of_output && !found.of_gradients && !found.of_pool && !found.of_matrix)
    throw Error(ErrorKind::usage, fmt::format("no fault '{}'", name), {}, "kda-check list faults");
  if (name == text) return found;
  const char* const number = text.c_str() + name.size() + 1;
  char* end = nullptr;
  const double at = std::strtod(number, &end);
  if (end == number || *end != '\0' || !(at >= 0 && at < 1e6) || found.of_output == nullptr ||
      found.of_output->at == Fault::At::everywhere)
    throw Error(ErrorKind::usage, fmt::format("fault={}: '{}' is no place of it", text, number), {},
                "a token, rows of a chunk or a factor, of a fault that has one");
  const bool is_factor = found.of_output->at == Fault::At::factor;
  found.at = static_cast<std::size_t>(std::llround(is_factor ? at / Fault::factor_unit : at));
  return found;
}

kda::Tensors unrounded(const Problem& problem, const kda::Variant& variant, RunOptions options) {
  Hypothesis known;
  known.variant = &variant, known.options = std::move(options);
  known = with_outputs_in(std::move(known), DType::fp32, problem);
  return kda::run_pass(kda::Pass::forward, variant, problem, known.options);
}

Interpretation misread(const Problem& problem, const Fault& fault, std::optional<std::size_t> at,
                       std::size_t chunk_size) {
  Interpretation reading(problem);
  if (fault.in_part) reading.channels = Channels::last;
  fault.apply(reading, at.value_or(place_of(fault, middle_token(problem), chunk_size)));
  return reading;
}

kda::Answer misreading_answer(const Problem& problem, const Interpretation& reading,
                              const kda::Variant& variant, const RunOptions& options) {
  const kda::Answer wrong = answer_of(problem, reading),
                    right = kda::answer_in_fp64(problem, options.threads);
  const kda::Tensors exact = unrounded(problem, variant, options);
  return {with_difference(exact.at("o"), wrong.o, right.o, options.dtype),
          with_difference(exact.at("final_state"), wrong.final_state, right.final_state,
                          kda::state_dtype(options.dtype))};
}

bool NamedFault::applies(const Problem& problem) const {
  if (of_output != nullptr) return of_output->applies(problem);
  if (of_matrix) return has_chunk_form(problem);
  if (of_pool != nullptr) return problem.pool && (of_pool->needs == nullptr || of_pool->needs(*problem.pool));
  return of_gradients == nullptr ||
         (kda::Outline(problem).has_loss() && BackwardReference::can_differentiate(problem) &&
          of_gradients->applies(problem));
}

kda::Tensors faulty_output(const NamedFault& fault, const Problem& problem, const kda::Variant& variant,
                           const RunOptions& options) {
  if (!fault.applies(problem))
    throw Error(ErrorKind::usage, "this fault would change nothing of the problem");
  kda::Tensors made;
  if (fault.is_of_outputs()) {
    Interpretation reading(problem);
    if (fault.of_matrix) {
      reading.chunk_fault = ChunkFault::moved, reading.chunk = options.chunk_size;
      reading.site = fault.of_matrix->site, reading.move = fault.of_matrix->move;
    } else {
      reading = misread(problem, *fault.of_output, fault.at, options.chunk_size);
    }
    made = kda::by_name(misreading_answer(problem, reading, variant, options));
  } else if (fault.of_pool != nullptr) {
    made = kda::by_name(with_pool_fault(*fault.of_pool, problem, options));
  } else {
    made = kda::run_pass(kda::Pass::forward, variant, problem, options);
    if (fault.of_gradients != nullptr) {
      for (Tensor& gradient : BackwardReference(problem, options.chunk_size)
                                  .gradients(fault.of_gradients->reading(), options.dtype))
        if (std::string name = gradient.name(); !gradient.empty())
          made.emplace(std::move(name), std::move(gradient));
    } else if (kda::Outline(problem).has_loss()) {
      made.merge(kda::run_pass(kda::Pass::backward, variant, problem, options));
    }
  }
  return problem.pool ? kda::of_call(*problem.pool, made) : std::move(made);
}

}  // namespace kda_check::hypotheses

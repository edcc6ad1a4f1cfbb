#include "explain/names/ladder.hpp"

#include <fmt/format.h>

#include "explain/names/axes_of_form.hpp"
#include "hypotheses/errors.hpp"

namespace kda_check::explain {

using hypotheses::difference;
using hypotheses::Differences;
using hypotheses::differing_bits;
using hypotheses::rms;
using hypotheses::share;
using hypotheses::values;

namespace {

/// What was reached after each step: an answer of its own, or that of an end.
struct Step {
  std::string change;
  kda::Tensors computed;
  const kda::Tensors* of_end = nullptr;

  const kda::Tensors& answer() const { return of_end != nullptr ? *of_end : computed; }
};

/// Different words may mean the same roundings: `fla` and `upstream` are one in 16 bits.
bool same_arithmetic(const kda::Problem& problem, const kda::Variant& variant, const kda::RunOptions& a,
                     const kda::RunOptions& b) {
  kda::Arithmetic left = a.arithmetic, right = b.arithmetic;
  for (kda::Arithmetic* const arithmetic : {&left, &right}) {
    arithmetic->casts = kda::cast_points(*arithmetic, a.dtype, problem.beta_is_16_bit(), variant.axes.chunk);
    arithmetic->storage = kda::Storage::named;
  }
  return are_one(left, right, variant);
}

/// From `from` to the emulation of `to`: its variant first, for only then do all axes exist, then axis by
/// axis.
std::vector<Step> climb(const LadderEnd& from, const LadderEnd& to, kda::Pass pass,
                        const kda::Problem& problem,
                        const std::function<void(const std::string&)>& progress) {
  std::vector<Step> steps;
  const kda::Variant* variant = from.variant;
  kda::RunOptions options = from.options;
  const auto take = [&](std::string change) {
    if (progress) progress(change);
    steps.push_back({std::move(change), kda::run_pass(pass, *variant, problem, options)});
  };
  if (from.answered != nullptr) {
    steps.push_back({from.name, {}, from.answered});
    take(fmt::format("as {} computes it", variant->name));
  } else {
    take(from.name);
  }
  if (options.dtype != to.options.dtype) {
    options.dtype = to.options.dtype;
    take(fmt::format("dtype {}", numeric::name_of(options.dtype)));
  }
  if (options.chunk_size != to.options.chunk_size && variant->axes.chunk) {
    options.chunk_size = to.options.chunk_size;
    take(fmt::format("chunks of {}", options.chunk_size));
  }
  if (variant->name != to.variant->name) {
    options.chunk_size = to.options.chunk_size;
    kda::Arithmetic arithmetic = to.variant->default_arithmetic(problem, options.dtype);
    for (const kda::AxisRow& axis : kda::axes())
      if (is_shared(axis, *variant, *to.variant)) axis.copy(options.arithmetic, arithmetic);
    variant = to.variant;
    // What the token form did not round the chunk form does not round yet.
    if (variant->axes.chunk && arithmetic.storage != kda::Storage::named)
      arithmetic.storage = kda::Storage::none;
    options.arithmetic = arithmetic;
    take(fmt::format("form of {}", variant->name));
  }
  for (const kda::AxisRow& axis : kda::axes()) {
    if (!has_axis(*variant, axis)) continue;
    const kda::RunOptions before = options;
    axis.copy(to.options.arithmetic, options.arithmetic);
    if (same_arithmetic(problem, *variant, before, options)) continue;
    take(fmt::format("{}={}", axis.name, axis_value(options.arithmetic, axis, *variant)));
  }
  return steps;
}

/// `name`: a tensor that all steps have.
Ladder ladder_of(const std::vector<Step>& steps, const tensor::Tensor& goal, const std::string& name) {
  Ladder ladder;
  ladder.tensor = name;
  ladder.elements = goal.size();
  const double scale = rms(values(goal));
  const Differences whole = difference(steps.front().answer().at(name), goal);
  Differences before = whole;
  for (const Step& step : steps) {
    const tensor::Tensor& reached = step.answer().at(name);
    const Differences left = difference(reached, goal);
    Differences change = before;
    for (std::size_t i = 0; i < change.size(); ++i) change[i] -= left[i];
    Rung rung;
    rung.change = step.change;
    rung.remaining = scale == 0 ? 0 : rms(left) / scale;
    rung.differing = differing_bits(reached, goal);
    rung.share = share(change, whole);
    ladder.rungs.push_back(std::move(rung));
    before = left;
  }
  return ladder;
}

}  // namespace

std::vector<Ladder> ladders_between(const LadderEnd& from, const LadderEnd& to, kda::Pass pass,
                                    const kda::Problem& problem, const std::vector<std::string>& tensors,
                                    const std::function<void(const std::string&)>& progress) {
  std::vector<Step> steps = climb(from, to, pass, problem, progress);
  const kda::Tensors computed =
      to.answered != nullptr ? kda::Tensors() : kda::run_pass(pass, *to.variant, problem, to.options);
  const kda::Tensors& goal = to.answered != nullptr ? *to.answered : computed;
  if (to.answered != nullptr) steps.push_back({fmt::format("{} itself", to.name), {}, to.answered});
  std::vector<Ladder> ladders;
  for (const std::string& name : tensors)
    if (goal.contains(name) && steps.front().answer().contains(name))
      ladders.push_back(ladder_of(steps, goal.at(name), name));
  return ladders;
}

}  // namespace kda_check::explain

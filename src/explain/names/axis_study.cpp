#include "explain/names/axis_study.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/names.hpp"
#include "explain/names/axes_of_form.hpp"
#include "explain/stages/stage_runs.hpp"
#include "judge/measures/metrics.hpp"

namespace kda_check::explain {

using hypotheses::difference;
using hypotheses::Differences;
using hypotheses::ExactValues;
using hypotheses::HeldOracle;
using hypotheses::rms;

namespace {

/// Operand rounding of this share leaves nothing worth attributing to the other axes.
constexpr double swamped = 0.95;

std::string not_finite(const Attribution& item) {
  std::vector<std::string> causes;
  for (const AxisShare& axis : item.axes)
    if (std::isfinite(axis.without)) causes.push_back(axis.axis);
  return causes.empty() ? "not finite, whichever axis is ideal"
                        : fmt::format("not finite; finite with an ideal {}", join(causes, " or "));
}

}  // namespace

AxisStudy::AxisStudy(const kda::Problem& problem, const kda::Variant& variant, const kda::Variant& on_cpu,
                     kda::RunOptions options, kda::Pass pass, const HeldOracle& oracle)
    : problem_(problem),
      variant_(variant),
      on_cpu_(on_cpu),
      options_(std::move(options)),
      pass_(pass),
      oracle_(oracle) {
  ideal_ = kda::ideal_arithmetic();
  full_ = errors(options_.arithmetic);
  ideal_errors_ = errors(ideal_);
  for (const kda::AxisRow& axis : kda::axes()) {
    if (!has_axis(variant, axis)) continue;
    kda::Arithmetic only = ideal_, without = options_.arithmetic;
    axis.copy(options_.arithmetic, only);
    axis.copy(ideal_, without);
    // An axis that is ideal already changes nothing: two runs saved.
    const bool ideal_here = are_one(without, options_.arithmetic, variant);
    only_.push_back(ideal_here ? ideal_errors_ : errors(only));
    without_.push_back(ideal_here ? full_ : errors(without));
  }
}

Attribution AxisStudy::tensor(const std::string& name) const {
  const double scale = rms(oracle_.at(name));
  const auto ratio = [&](const Errors& errors) { return scale == 0 ? 0 : rms(errors.at(name)) / scale; };
  Attribution result;
  result.tensor = name;
  result.full = ratio(full_);
  result.ideal = ratio(ideal_errors_);
  const auto square_share = [&](double error) {
    return result.full == 0 ? 0 : (error / result.full) * (error / result.full);
  };
  result.ideal_share = square_share(result.ideal);
  result.interaction = result.full == 0 ? 0 : 1 - result.ideal_share;
  for (std::size_t a = 0; a < only_.size(); ++a) {
    AxisShare axis;
    axis.axis = kda::axes()[a].name;
    axis.value = axis_value(options_.arithmetic, kda::axes()[a], variant_);
    axis.only = ratio(only_[a]);
    axis.without = ratio(without_[a]);
    axis.share = square_share(axis.only) - result.ideal_share;
    result.interaction -= axis.share;
    if (axis.axis == "storage" && axis.share > swamped)
      result.note =
          fmt::format("rounding of operands and stages swamps the rest: without it {:.3g}, {:.0f} times less",
                      axis.without, result.full / axis.without);
    result.axes.push_back(std::move(axis));
  }
  if (!std::isfinite(result.full)) result.note = not_finite(result);
  return result;
}

AxisStudy::Errors AxisStudy::errors(const kda::Arithmetic& arithmetic) const {
  kda::RunOptions options = options_;
  options.arithmetic = arithmetic;
  const kda::Variant& variant = arithmetic == options_.arithmetic ? variant_ : on_cpu_;
  const kda::Tensors answer = kda::run_pass(pass_, variant, problem_, options);
  Errors all;
  for (const auto& [name, exact] : oracle_) all.emplace(name, difference(answer.at(name), exact));
  return all;
}

std::vector<StageShare> stage_shares(const kda::Problem& problem, const kda::Variant& variant,
                                     kda::RunOptions options, const HeldOracle& oracle,
                                     const kda::StageTruths& truths, double full) {
  const kda::StageTensors exact =
      kda::rounded_stages(truths, problem, options.chunk_size, kda::state_dtype(options.dtype));
  const kda::StageTensors own = own_stages(problem, variant, options, exact);
  options.stages.given = &exact;
  const ExactValues& o = oracle.at("o");
  const double scale = rms(o);
  std::vector<StageShare> shares;
  for (const StageError& error : stage_errors({&own, options.arithmetic.gates != kda::Gates::natural}, truths,
                                              problem, options.chunk_size, options.threads)) {
    options.stages.use_given.fill(false);
    options.stages.use_given[static_cast<std::size_t>(error.stage)] = true;
    const kda::Answer answer = variant.run(problem, options);
    StageShare share;
    share.stage = kda::stages()[static_cast<std::size_t>(error.stage)].name;
    share.own = judge::find_metric("rms_ratio")->value(error.measures);
    share.given = scale == 0 ? 0 : rms(difference(answer.o, o)) / scale;
    share.share = full == 0 ? 0 : 1 - (share.given / full) * (share.given / full);
    shares.push_back(std::move(share));
  }
  return shares;
}

}  // namespace kda_check::explain

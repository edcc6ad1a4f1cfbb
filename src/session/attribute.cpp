#include "session/attribute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <new>

#include "analysis/attribution.hpp"
#include "analysis/stage_errors.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "compare/metrics.hpp"
#include "session/describe.hpp"
#include "session/ladder.hpp"
#include "session/passes.hpp"
#include "session/replay.hpp"
#include "session/selection.hpp"
#include "session/sources.hpp"
#include "session/staging.hpp"
#include "session/targets.hpp"

namespace kda_check::session {

namespace {

using analysis::Differences;
using numeric::DType;

/// Operand rounding of this share leaves nothing worth attributing to the other axes.
constexpr double swamped = 0.95;

/// What one variant makes of one problem in any arithmetic, measured against the oracle. Shares are of the
/// mean square: errors of independent causes add up in it. A GPU variant computes in its own arithmetic only;
/// in every other one its replay stands for it.
class AxisStudy {
 public:
  AxisStudy(const kda::Problem& problem, const kda::Variant& variant, kda::RunOptions options, Pass pass,
            const analysis::HeldOracle& oracle)
      : problem_(problem), variant_(variant), options_(std::move(options)), pass_(pass), oracle_(oracle) {
    ideal_ = kda::ideal_arithmetic();
    full_ = errors(options_.arithmetic);
    ideal_errors_ = errors(ideal_);
    for (const kda::AxisRow& axis : kda::axes()) {
      if (axis.name == "formulation" && !variant.axes.chunk) continue;
      kda::Arithmetic only = ideal_, without = options_.arithmetic;
      axis.copy(options_.arithmetic, only);
      axis.copy(ideal_, without);
      // An axis that is ideal already changes nothing: two runs saved.
      const bool ideal_here = without == options_.arithmetic;
      only_.push_back(ideal_here ? ideal_errors_ : errors(only));
      without_.push_back(ideal_here ? full_ : errors(without));
    }
  }

  report::Attribution tensor(const std::string& name) const {
    const double scale = analysis::rms(oracle_.at(name));
    const auto ratio = [&](const Errors& errors) {
      return scale == 0 ? 0 : analysis::rms(errors.at(name)) / scale;
    };
    report::Attribution result;
    result.tensor = name;
    result.full = ratio(full_);
    result.ideal = ratio(ideal_errors_);
    const auto square_share = [&](double error) {
      return result.full == 0 ? 0 : (error / result.full) * (error / result.full);
    };
    result.ideal_share = square_share(result.ideal);
    result.interaction = result.full == 0 ? 0 : 1 - result.ideal_share;
    for (std::size_t a = 0; a < only_.size(); ++a) {
      report::AxisShare axis;
      axis.axis = kda::axes()[a].name;
      axis.value = kda::axis_value(options_.arithmetic, axis.axis);
      axis.only = ratio(only_[a]);
      axis.without = ratio(without_[a]);
      axis.share = square_share(axis.only) - result.ideal_share;
      result.interaction -= axis.share;
      if (axis.axis == "storage" && axis.share > swamped)
        result.note = fmt::format(
            "rounding of operands and stages swamps the rest: without it {:.3g}, {:.0f} times less",
            axis.without, result.full / axis.without);
      result.axes.push_back(std::move(axis));
    }
    if (!std::isfinite(result.full)) result.note = not_finite(result);
    return result;
  }

  static std::string not_finite(const report::Attribution& item) {
    std::vector<std::string> causes;
    for (const report::AxisShare& axis : item.axes)
      if (std::isfinite(axis.without)) causes.push_back(axis.axis);
    return causes.empty() ? "not finite, whichever axis is ideal"
                          : fmt::format("not finite; finite with an ideal {}", join(causes, " or "));
  }

 private:
  using Errors = std::map<std::string, Differences>;  ///< of each tensor of the pass
  Errors errors(const kda::Arithmetic& arithmetic) const {
    kda::RunOptions options = options_;
    options.arithmetic = arithmetic;
    const kda::Variant& variant = arithmetic == options_.arithmetic ? variant_ : on_cpu(variant_);
    const Answered answer = run_pass(pass_, variant, problem_, options);
    Errors all;
    for (const auto& [name, exact] : oracle_)
      all.emplace(name, analysis::difference(*answer.tensor(name), exact));
    return all;
  }

  const kda::Problem& problem_;
  const kda::Variant& variant_;
  const kda::RunOptions options_;
  const Pass pass_;
  const analysis::HeldOracle& oracle_;
  kda::Arithmetic ideal_;
  Errors full_, ideal_errors_;
  std::vector<Errors> only_, without_;
};

/// Each stage's own error, and the error of o when that stage alone is exact.
std::vector<report::StageShare> stage_shares(const kda::Problem& problem, const kda::Variant& variant,
                                             kda::RunOptions options, const analysis::HeldOracle& oracle,
                                             const kda::StageTruths& truths, double full) {
  const kda::StageTensors exact =
      kda::rounded_stages(truths, problem, options.chunk_size, kda::state_dtype(options.dtype));
  const kda::StageTensors own = own_stages(problem, variant, options, exact);
  options.stages.given = &exact;
  const analysis::ExactValues& o = oracle.at("o");
  const double scale = analysis::rms(o);
  std::vector<report::StageShare> shares;
  for (const analysis::StageError& error :
       analysis::stage_errors({&own, false}, truths, problem, options.chunk_size, options.threads)) {
    options.stages.use_given.fill(false);
    options.stages.use_given[static_cast<std::size_t>(error.stage)] = true;
    const kda::Answer answer = variant.run(problem, options);
    report::StageShare share;
    share.stage = kda::stages()[static_cast<std::size_t>(error.stage)].name;
    share.own = compare::find_metric("rms_ratio")->value(error.measures);
    share.given = scale == 0 ? 0 : analysis::rms(analysis::difference(answer.o, o)) / scale;
    share.share = full == 0 ? 0 : 1 - (share.given / full) * (share.given / full);
    shares.push_back(std::move(share));
  }
  return shares;
}

class SourceAttribution {
 public:
  SourceAttribution(const AttributeRequest& request, const std::vector<PassTensors>& passes, const Log& log,
                    report::AttributionResult& result)
      : request_(request), passes_(passes), log_(log), result_(result) {}

  void run(const std::string& target) {
    Source source = Source::open(target, request_.limits);
    if (log_.warning)
      for (const std::string& warning : source.warnings())
        log_.warning(fmt::format("{} ({})", warning, source.path()));
    report::FixtureResult described = describe(source);
    const kda::Problem problem = source.take_problem();
    const std::vector<PassTensors> passes = passes_here(problem, described.notes);
    if (!request_.between.empty()) {
      for (const PassTensors& wanted : passes)
        for (report::Ladder& ladder : ladders_between(source, problem, wanted, request_, log_))
          result_.ladders.push_back(std::move(ladder));
    } else if (!passes.empty()) {
      for (const auto& wanted : selected_dtypes(request_.dtypes)) {
        const DType dtype = wanted.value_or(problem.dtype());
        if (holds_exactly(dtype, problem.dtype())) {
          attribute(source, problem, dtype, passes, described);
        } else {
          attribute(source, kda::with_inputs_rounded_to(problem, dtype), dtype, passes, described);
          note_once(described.notes, fmt::format("{}: inputs rounded to it first", numeric::name_of(dtype)));
        }
      }
    }
    result_.fixtures.push_back(std::move(described));
  }

 private:
  /// What is wanted and exists; what does not is noted.
  std::vector<PassTensors> passes_here(const kda::Problem& problem, std::vector<std::string>& notes) const {
    std::vector<PassTensors> passes;
    for (const PassTensors& wanted : passes_) {
      PassTensors here{wanted.pass, tensors_here(wanted, problem)};
      if (!here.tensors.empty()) {
        passes.push_back(std::move(here));
      } else if (problem.has_loss()) {
        note_once(notes, fmt::format("skipped: the problem has no {}", join(wanted.tensors, " or ")));
      } else {
        note_once(notes, "skipped: without do or dht there are no gradients");
      }
    }
    return passes;
  }

  void attribute(const Source& source, const kda::Problem& problem, DType dtype,
                 const std::vector<PassTensors>& passes, report::FixtureResult& described) {
    for (const PassTensors& wanted : passes) attribute_pass(source, problem, dtype, wanted, described);
  }

  void attribute_pass(const Source& source, const kda::Problem& problem, DType dtype,
                      const PassTensors& wanted, report::FixtureResult& described) {
    const std::size_t chunk =
        request_.chunk_size.value_or(static_cast<std::size_t>(problem.options.chunk_size));
    if (log_.progress) log_.progress(fmt::format("{}: oracle", source.name()));
    const analysis::HeldOracle oracle =
        hold_pass(wanted.pass, problem, chunk, request_.threads, request_.limits.memory_budget);
    std::optional<kda::StageTruths> truths;
    for (const kda::Variant* const variant : selected_variants(request_.variants, request_.registry)) {
      kda::RunOptions options =
          run_options(*variant, problem, dtype, request_.arithmetic, chunk, request_.threads);
      options.memory_limit = request_.limits.memory_budget;
      std::string reason = why_no_pass(wanted.pass, *variant);
      if (reason.empty()) reason = why_not(*variant, problem, options);
      if (reason.empty()) reason = why_no_replay(*variant, problem, options);
      if (!reason.empty()) {
        note_once(described.notes,
                  fmt::format("skipped: {} {}: {}", variant->name, numeric::name_of(dtype), reason));
        continue;
      }
      const bool with_stages =
          variant->axes.chunk && std::ranges::find(wanted.tensors, "o") != wanted.tensors.end();
      if (with_stages) check_stage_memory(problem, chunk, request_.limits.memory_budget);
      if (log_.progress)
        log_.progress(fmt::format("{}: {} {}", source.name(), variant->name, numeric::name_of(dtype)));
      const AxisStudy study(problem, *variant, options, wanted.pass, oracle);
      for (const std::string& name : wanted.tensors) {
        report::Attribution item = study.tensor(name);
        item.fixture = source.name();
        item.path = source.path();
        item.pass = name_of(wanted.pass);
        describe_run(*variant, options, wanted.pass, item);
        if (name == "o" && with_stages) {
          if (!truths) truths = kda::run_stage_oracle(problem, chunk, request_.threads);
          item.stages = stage_shares(problem, on_cpu(*variant), options, oracle, *truths, item.full);
        }
        result_.attributions.push_back(std::move(item));
      }
    }
  }

  static void describe_run(const kda::Variant& variant, const kda::RunOptions& options, Pass pass,
                           report::Attribution& item) {
    item.variant = variant.name;
    item.dtype = numeric::name_of(options.dtype);
    item.compute = numeric::row_of(kda::compute_format(variant, options.dtype, options.arithmetic,
                                                       pass == Pass::backward))
                       .name;
    item.arithmetic = kda::describe(options.arithmetic, variant.axes);
  }

  const AttributeRequest& request_;
  const std::vector<PassTensors>& passes_;
  const Log& log_;
  report::AttributionResult& result_;
};

}  // namespace

report::AttributionResult attribute(const AttributeRequest& request, const Log& log) {
  check_arithmetic(request.arithmetic, selected_variants(request.variants, request.registry));
  const std::size_t dtypes = selected_dtypes(request.dtypes).size();
  if (!request.between.empty() && (!request.variants.empty() || dtypes > 1))
    throw Error(ErrorKind::usage, "--between names its variants itself, and takes one --dtype");
  const std::vector<PassTensors> passes =
      selected_passes("attribute", without_repeats(request.tensors), request.backward, every_pass());
  report::AttributionResult result;
  for (const std::string& target : expanded_targets(request.targets)) {
    try {
      SourceAttribution(request, passes, log, result).run(target);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
      result.errors.push_back({error.what(), exit_code(error.kind())});
    } catch (const std::bad_alloc&) {
      result.errors.push_back({fmt::format("out of memory ({})", target), exit_code(ErrorKind::environment)});
    }
  }
  if (result.attributions.empty() && result.ladders.empty() && result.errors.empty())
    for (const report::FixtureResult& fixture : result.fixtures)
      for (const std::string& note : fixture.notes)
        if (note.starts_with("skipped")) throw Error(ErrorKind::usage, "attribute: nothing to do; " + note);
  return result;
}

}  // namespace kda_check::session

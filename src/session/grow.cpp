#include "session/grow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "analysis/growth.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/schema.hpp"
#include "session/describe.hpp"
#include "session/passes.hpp"
#include "session/selection.hpp"
#include "session/sources.hpp"
#include "session/targets.hpp"

namespace kda_check::session {

namespace {

using analysis::GrowthMetric;
using analysis::Origin;
using kda::Problem;
using numeric::DType;

constexpr std::pair<std::string_view, GrowthMetric> tracked[] = {{"rms_ratio", GrowthMetric::rms_ratio},
                                                                 {"scaled_ulp", GrowthMetric::scaled_ulp},
                                                                 {"max_abs", GrowthMetric::max_abs}};

std::optional<GrowthMetric> metric_named(std::string_view name) {
  for (const auto& [metric_name, metric] : tracked)
    if (metric_name == name) return metric;
  return std::nullopt;
}

bool has_tokens(std::string_view tensor) {
  const std::span<const kda::Axis> axes = kda::find_spec(tensor)->axis_list();
  return std::find(axes.begin(), axes.end(), kda::Axis::token) != axes.end();
}

std::vector<PassTensors> passes_with_tokens() {
  std::vector<PassTensors> passes = every_pass();
  for (PassTensors& pass : passes)
    std::erase_if(pass.tensors, [](const std::string& tensor) { return !has_tokens(tensor); });
  return passes;
}

/// What the request selects, checked before the first file is opened.
struct Plan {
  explicit Plan(const GrowRequest& request)
      : variants(selected_variants(request.variants)),
        dtypes(selected_dtypes(request.dtypes)),
        passes(selected_passes("grow", without_repeats(request.tensors), request.backward,
                               passes_with_tokens())) {
    check_arithmetic(request.arithmetic, variants);
    for (const compare::LimitRequest& limit : request.limits)
      if (!metric_named(limit.metric))
        throw Error(ErrorKind::usage, fmt::format("grow does not follow {} along T", limit.metric), {},
                    "limits here are of rms_ratio, scaled_ulp or max_abs");
  }

  std::vector<const kda::Variant*> variants;
  std::vector<std::optional<DType>> dtypes;
  std::vector<PassTensors> passes;
};

/// What is measured of one tensor of an answer, and how positions are counted.
struct Followed {
  const Measured& measured;
  const std::vector<kda::Sequence>& sequences;
  std::size_t window;
  Origin origin;
};

report::GrowthFit described(const analysis::Fit& fit) {
  return {fit.points, fit.slope, fit.standard_error, fit.r2};
}

report::GrowthCrossing crossing_of(const compare::Limit& limit, GrowthMetric metric,
                                   const Followed& followed) {
  const auto& [measured, sequences, window, origin] = followed;
  report::GrowthCrossing result;
  result.metric = limit.metric;
  result.limit = limit.value;
  result.source = limit.source;
  const auto crossing =
      analysis::first_crossing(measured.series, sequences, window, metric, limit.value, origin);
  if (!crossing) return result;
  result.crossed = true;
  result.position = crossing->position;
  result.value = crossing->value;
  result.place =
      fmt::format("{}[b={} t={} h={}", measured.tensor, crossing->row, crossing->token, crossing->head);
  const kda::TensorSpec& spec = *kda::find_spec(measured.tensor);
  if (crossing->lane && spec.rank == 4)
    result.place += fmt::format(" {}={}", kda::axis_letter(spec.axes[3]), *crossing->lane);
  result.place += ']';
  return result;
}

report::GrowthCase case_of(const Answered& answer, const Followed& followed,
                           const std::vector<compare::LimitRequest>& limits) {
  const auto& [measured, sequences, window, origin] = followed;
  const analysis::Growth growth = analysis::growth_of(measured.series, sequences, window, origin);
  report::GrowthCase result;
  result.answer = answer.name;
  result.recorded = answer.recorded;
  result.dtype = numeric::name_of(answer.dtype);
  result.compute = numeric::row_of(answer.compute).name;
  result.arithmetic = answer.arithmetic;
  result.tensor = measured.tensor;
  result.from = analysis::name_of(origin);
  result.window = window;
  result.has_magnitude = measured.measures.has_magnitude;
  for (const analysis::Window& item : growth.windows)
    result.windows.push_back({item.first, item.last, item.rms_ratio, item.scaled_ulp, item.max_abs});
  result.fit = described(growth.fit);
  result.trend = analysis::name_of(growth.trend);
  result.worst_head = growth.worst_head;
  for (const analysis::HeadGrowth& head : growth.heads)
    result.heads.push_back({head.rms_ratio, described(head.fit), head.window_rms_ratio});
  for (const compare::Limit& limit : compare::merged(measured.limits, limits, "command line"))
    if (const auto metric = metric_named(limit.metric))
      result.crossings.push_back(crossing_of(limit, *metric, followed));
  return result;
}

/// One target, from its file or regime to its cases.
class SourceGrowth {
 public:
  SourceGrowth(const GrowRequest& request, const Plan& plan, const Log& log, report::GrowthResult& result)
      : request_(request), plan_(plan), log_(log), result_(result) {}

  void run(const std::string& path) {
    Source file = Source::open(path, request_.read_limits);
    if (log_.warning)
      for (const std::string& warning : file.warnings())
        log_.warning(fmt::format("{} ({})", warning, file.path()));
    if (request_.against != "oracle" && file.expected_named(request_.against) == nullptr)
      throw Error(ErrorKind::input, fmt::format("no group expected/{}", request_.against), path,
                  "kda-check show FILE lists them");
    report::FixtureResult fixture = describe(file);
    const Problem problem = file.take_problem();
    for (const PassTensors& wanted : plan_.passes) {
      const PassTensors here{wanted.pass, tensors_here(wanted, problem)};
      if (here.tensors.empty()) {
        note_once(fixture.notes, "skipped: without do or dht there are no gradients");
      } else {
        run_pass_of(file, problem, here, fixture.notes);
      }
    }
    result_.fixtures.push_back(std::move(fixture));
  }

 private:
  void run_pass_of(const Source& file, const Problem& problem, const PassTensors& wanted,
                   std::vector<std::string>& notes) {
    std::vector<DType> as_stored;
    for (const auto& chosen : plan_.dtypes) {
      const DType dtype = chosen.value_or(problem.dtype());
      if (holds_exactly(dtype, problem.dtype())) {
        as_stored.push_back(dtype);
      } else if (request_.against == "oracle") {
        run_problem(file, kda::with_inputs_rounded_to(problem, dtype), wanted, {dtype}, {}, notes);
        note_once(notes, fmt::format("{}: inputs rounded to it first", numeric::name_of(dtype)));
      } else {
        note_once(notes, fmt::format("{}: expected/{} answers the stored inputs", numeric::name_of(dtype),
                                     request_.against));
      }
    }
    if (as_stored.empty()) return;
    std::vector<Answered> recorded = recorded_answers(file, wanted.tensors);
    if (wanted.pass == Pass::backward)
      std::erase_if(recorded, [](const Answered& answer) { return !answer.gradients; });
    run_problem(file, problem, wanted, as_stored, recorded, notes);
  }

  void run_problem(const Source& file, const Problem& problem, const PassTensors& wanted,
                   const std::vector<DType>& dtypes, const std::vector<Answered>& recorded,
                   std::vector<std::string>& notes) {
    const std::size_t chunk =
        request_.chunk_size.value_or(static_cast<std::size_t>(problem.options.chunk_size));
    const Answered* expected = nullptr;
    for (const Answered& answer : recorded)
      if (answer.name == request_.against) expected = &answer;
    if (request_.against != "oracle" && expected == nullptr) {
      note_once(notes, fmt::format("skipped: expected/{} has no gradients", request_.against));
      return;
    }
    const std::vector<Answered> computed = computed_answers(file, problem, wanted.pass, dtypes, chunk, notes);
    std::vector<Pairing> pairings;
    for (const std::vector<Answered>* const answers : {&computed, &recorded})
      for (const Answered& answer : *answers)
        if (&answer != expected) pairings.push_back({&answer, expected});
    if (log_.progress) log_.progress(fmt::format("{}: comparing", file.name()));
    JudgingRequest judging;
    judging.worst = 0;
    const kda::Regime regime = kda::regime_of(problem, chunk, request_.threads);
    CompareRequest compare{wanted.tensors, request_.oracle, request_.threads, judging, regime};
    compare.series = true;
    compare.chunk_size = chunk;
    compare.memory_budget = request_.read_limits.memory_budget;
    const auto file_chunk = static_cast<std::size_t>(problem.options.chunk_size);
    if (!recorded.empty() && chunk != file_chunk)
      compare.recorded_regime = kda::regime_of(problem, file_chunk, request_.threads);
    const std::vector<kda::Sequence> sequences = problem.sequences();
    for (const Measured& item : measured(problem, pairings, compare))
      for (const Origin origin : {Origin::start, Origin::end}) {
        if (origin == Origin::end && wanted.pass == Pass::forward) continue;
        report::GrowthCase growth =
            case_of(*pairings[item.pairing].got, {item, sequences, request_.window.value_or(chunk), origin},
                    request_.limits);
        growth.fixture = file.name();
        growth.path = file.path();
        growth.against = request_.against;
        result_.cases.push_back(std::move(growth));
      }
  }

  std::vector<Answered> computed_answers(const Source& file, const Problem& problem, Pass pass,
                                         const std::vector<DType>& dtypes, std::size_t chunk,
                                         std::vector<std::string>& notes) const {
    std::vector<Answered> answers;
    for (const DType dtype : dtypes)
      for (const kda::Variant* const variant : plan_.variants) {
        if (log_.progress)
          log_.progress(fmt::format("{}: {} {}", file.name(), variant->name, numeric::name_of(dtype)));
        kda::RunOptions options =
            run_options(*variant, problem, dtype, request_.arithmetic, chunk, request_.threads);
        options.memory_limit = request_.read_limits.memory_budget;
        std::string reason = why_no_pass(pass, *variant);
        if (reason.empty()) reason = why_not(*variant, problem, options);
        if (!reason.empty()) {
          note_once(notes, fmt::format("skipped: {} {}: {}", variant->name, numeric::name_of(dtype), reason));
          continue;
        }
        answers.push_back(run_pass(pass, *variant, problem, options));
      }
    return answers;
  }

  const GrowRequest& request_;
  const Plan& plan_;
  const Log& log_;
  report::GrowthResult& result_;
};

}  // namespace

report::GrowthResult grow(const GrowRequest& request, const Log& log) {
  const Plan plan(request);
  report::GrowthResult result;
  result.oracle = oracle_name(request.oracle);
  for (const PassTensors& pass : plan.passes)
    result.tensors.insert(result.tensors.end(), pass.tensors.begin(), pass.tensors.end());
  for (const std::string& path : expanded_targets(request.targets)) {
    try {
      SourceGrowth(request, plan, log, result).run(path);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
      result.errors.push_back({error.what(), exit_code(error.kind())});
    } catch (const std::bad_alloc&) {
      result.errors.push_back({fmt::format("out of memory ({})", path), exit_code(ErrorKind::environment)});
    }
  }
  return result;
}

}  // namespace kda_check::session

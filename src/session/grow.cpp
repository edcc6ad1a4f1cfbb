#include "session/grow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "analysis/growth.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "session/answers.hpp"
#include "session/describe.hpp"
#include "session/selection.hpp"
#include "session/sources.hpp"
#include "session/targets.hpp"

namespace kda_check::session {

namespace {

using analysis::GrowthMetric;
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

/// What the request selects, checked before the first file is opened.
struct Plan {
  explicit Plan(const GrowRequest& request)
      : variants(selected_variants(request.variants)), dtypes(selected_dtypes(request.dtypes)) {
    check_arithmetic(request.arithmetic, variants);
    if (request.tensor != "o")
      throw Error(ErrorKind::usage, fmt::format("grow has no tensor '{}'", request.tensor), {},
                  "o is the only one with tokens");
    for (const compare::LimitRequest& limit : request.limits)
      if (!metric_named(limit.metric))
        throw Error(ErrorKind::usage, fmt::format("grow does not follow {} along T", limit.metric), {},
                    "limits here are of rms_ratio, scaled_ulp or max_abs");
  }

  std::vector<const kda::Variant*> variants;
  std::vector<std::optional<DType>> dtypes;
};

report::GrowthFit described(const analysis::Fit& fit) {
  return {fit.points, fit.slope, fit.standard_error, fit.r2};
}

report::GrowthCrossing crossing_of(const compare::Limit& limit, GrowthMetric metric, const Measured& measured,
                                   const std::vector<kda::Sequence>& sequences, std::size_t window) {
  report::GrowthCrossing result;
  result.metric = limit.metric;
  result.limit = limit.value;
  result.source = limit.source;
  const auto crossing = analysis::first_crossing(measured.series, sequences, window, metric, limit.value);
  if (!crossing) return result;
  result.crossed = true;
  result.position = crossing->position;
  result.value = crossing->value;
  result.place =
      fmt::format("{}[b={} t={} h={}", measured.tensor, crossing->row, crossing->token, crossing->head);
  if (crossing->lane) result.place += fmt::format(" v={}", *crossing->lane);
  result.place += ']';
  return result;
}

report::GrowthCase case_of(const Answered& answer, const Measured& measured, const Problem& problem,
                           std::size_t window, const std::vector<compare::LimitRequest>& limits) {
  const std::vector<kda::Sequence> sequences = problem.sequences();
  const analysis::Growth growth = analysis::growth_of(measured.series, sequences, window);
  report::GrowthCase result;
  result.answer = answer.name;
  result.recorded = answer.recorded;
  result.dtype = numeric::name_of(answer.dtype);
  result.compute = numeric::row_of(answer.compute).name;
  result.arithmetic = answer.arithmetic;
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
      result.crossings.push_back(crossing_of(limit, *metric, measured, sequences, window));
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
    std::vector<DType> as_stored;
    for (const auto& wanted : plan_.dtypes) {
      const DType dtype = wanted.value_or(problem.dtype());
      if (holds_exactly(dtype, problem.dtype())) {
        as_stored.push_back(dtype);
      } else if (request_.against == "oracle") {
        run_problem(file, kda::with_inputs_rounded_to(problem, dtype), {dtype}, {}, fixture.notes);
        fixture.notes.push_back(fmt::format("{}: inputs rounded to it first", numeric::name_of(dtype)));
      } else {
        fixture.notes.push_back(fmt::format("{}: expected/{} answers the stored inputs",
                                            numeric::name_of(dtype), request_.against));
      }
    }
    if (!as_stored.empty())
      run_problem(file, problem, as_stored, recorded_answers(file, {request_.tensor}), fixture.notes);
    result_.fixtures.push_back(std::move(fixture));
  }

 private:
  void run_problem(const Source& file, const Problem& problem, const std::vector<DType>& dtypes,
                   const std::vector<Answered>& recorded, std::vector<std::string>& notes) {
    const std::size_t chunk =
        request_.chunk_size.value_or(static_cast<std::size_t>(problem.options.chunk_size));
    const std::vector<Answered> computed = computed_answers(file, problem, dtypes, chunk, notes);
    const Answered* expected = nullptr;
    for (const Answered& answer : recorded)
      if (answer.name == request_.against) expected = &answer;
    std::vector<Pairing> pairings;
    for (const std::vector<Answered>* const answers : {&computed, &recorded})
      for (const Answered& answer : *answers)
        if (&answer != expected) pairings.push_back({&answer, expected});
    if (log_.progress) log_.progress(fmt::format("{}: comparing", file.name()));
    JudgingRequest judging;
    judging.worst = 0;
    const kda::Regime regime = kda::regime_of(problem, chunk, request_.threads);
    const std::vector<std::string> tensors{request_.tensor};
    CompareRequest compare{tensors, request_.oracle, request_.threads, judging, regime};
    compare.series = true;
    const auto file_chunk = static_cast<std::size_t>(problem.options.chunk_size);
    if (!recorded.empty() && chunk != file_chunk)
      compare.recorded_regime = kda::regime_of(problem, file_chunk, request_.threads);
    for (const Measured& item : measured(problem, pairings, compare)) {
      report::GrowthCase growth = case_of(*pairings[item.pairing].got, item, problem,
                                          request_.window.value_or(chunk), request_.limits);
      growth.fixture = file.name();
      growth.path = file.path();
      growth.against = request_.against;
      result_.cases.push_back(std::move(growth));
    }
  }

  std::vector<Answered> computed_answers(const Source& file, const Problem& problem,
                                         const std::vector<DType>& dtypes, std::size_t chunk,
                                         std::vector<std::string>& notes) const {
    std::vector<Answered> answers;
    for (const DType dtype : dtypes)
      for (const kda::Variant* const variant : plan_.variants) {
        if (log_.progress)
          log_.progress(fmt::format("{}: {} {}", file.name(), variant->name, numeric::name_of(dtype)));
        const kda::RunOptions options =
            run_options(*variant, problem, dtype, request_.arithmetic, chunk, request_.threads);
        if (const std::string reason = why_not(*variant, problem, options); !reason.empty()) {
          notes.push_back(fmt::format("skipped: {} {}: {}", variant->name, numeric::name_of(dtype), reason));
          continue;
        }
        answers.push_back(computed_answer(*variant, options, variant->run(problem, options)));
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
  result.tensor = request.tensor;
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

#include "session/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/error.hpp"
#include "base/names.hpp"
#include "compare/tolerances.hpp"
#include "session/answers.hpp"
#include "session/backward.hpp"
#include "session/describe.hpp"
#include "session/external.hpp"
#include "session/invariants.hpp"
#include "session/judging.hpp"
#include "session/probing.hpp"
#include "session/replay.hpp"
#include "session/run_plan.hpp"
#include "session/selection.hpp"
#include "session/sources.hpp"
#include "session/staging.hpp"
#include "session/targets.hpp"

namespace kda_check::session {

namespace {

using kda::Problem;
using numeric::DType;

/// One target, from its file or recipe to its cases.
class FixtureRun {
 public:
  FixtureRun(const RunRequest& request, const RunPlan& plan, const Log& log, report::Result& result)
      : request_(request), plan_(plan), log_(log), result_(result) {}

  /// Returns the expected groups of --against that this target has.
  std::vector<std::string> run(const std::string& path) {
    Source file = Source::open(path, request_.limits);
    for (const std::string& warning : file.warnings()) warn(file, warning);
    std::vector<std::string> found;
    for (const std::string& group : plan_.groups)
      if (file.expected_named(group) != nullptr) found.push_back(group);
    if (!plan_.groups.empty() && found.empty() && !plan_.against_oracle && !plan_.against_every_group &&
        !plan_.against_replay)
      return found;
    report::FixtureResult described = describe(file);
    {
      Problem problem = file.take_problem();
      for (const std::string& line : fixture::announce_values(problem)) {
        warn(file, line);
        described.notes.push_back(line);
      }
      note_gradients(problem, described);
      has_loss_ = problem.has_loss();
      run_all_dtypes(file, std::move(problem));
    }
    note_what_is_left(file, described);
    note_tolerances(file, described);
    result_.fixtures.push_back(std::move(described));
    return found;
  }

 private:
  void warn(const Source& file, const std::string& text) const {
    if (log_.warning) log_.warning(fmt::format("{} ({})", text, file.path()));
  }

  void run_all_dtypes(const Source& file, Problem problem) {
    // Formats that hold the stored inputs answer the stored problem; the others answer a rounded one.
    std::vector<DType> as_stored, rounded;
    for (const auto& wanted : plan_.dtypes) {
      const DType dtype = wanted.value_or(problem.dtype());
      std::vector<DType>& list = holds_exactly(dtype, problem.dtype()) ? as_stored : rounded;
      if (std::find(list.begin(), list.end(), dtype) == list.end()) list.push_back(dtype);
    }
    for (const DType dtype : rounded) run_rounded(file, problem, dtype);
    if (as_stored.empty()) return;
    std::vector<Answered> recorded = recorded_answers(file, plan_.tensors);
    run_problem(file, problem, as_stored, std::move(recorded), "");
  }

  void run_rounded(const Source& file, const Problem& problem, DType dtype) {
    const Problem rounded = kda::with_inputs_rounded_to(problem, dtype);
    run_problem(file, rounded, {dtype}, {}, fmt::format("inputs rounded to {}", numeric::name_of(dtype)));
  }

  /// Every tensor by its own element type.
  void refuse_fine_limits(DType dtype) const {
    for (const std::string& name : plan_.tensors)
      compare::refuse_limits_finer_than_storage(request_.judging.limits, request_.judging.atol.value_or(0),
                                                request_.judging.rtol.value_or(0),
                                                name == "o" ? dtype : kda::state_dtype(dtype));
  }

  std::size_t chunk_size(const Problem& problem) const {
    return request_.chunk_size.value_or(static_cast<std::size_t>(problem.options.chunk_size));
  }

  void run_problem(const Source& file, const Problem& problem, const std::vector<DType>& dtypes,
                   std::vector<Answered> recorded, const std::string& remark) {
    for (const DType dtype : dtypes) refuse_fine_limits(dtype);
    const kda::Regime regime = kda::regime_of(problem, chunk_size(problem), request_.threads);
    std::vector<Computed> computed;
    for (const DType dtype : dtypes)
      for (const kda::Variant* const variant : plan_.variants)
        if (std::optional<Computed> item = run_variant(file, problem, *variant, dtype))
          computed.push_back(std::move(*item));

    const std::optional<Answered> external = run_external(file, problem);

    std::vector<Pairing> pairings;
    if (plan_.against_oracle) {
      for (const Computed& item : computed) pairings.push_back({&item.answer, nullptr});
      if (external) pairings.push_back({&*external, nullptr});
      for (const Answered& answer : recorded) pairings.push_back({&answer, nullptr});
    }
    for (const Answered& expected : recorded) {
      if (!plan_.wants_group(expected.name)) continue;
      for (const Computed& item : computed) pairings.push_back({&item.answer, &expected});
      if (external) pairings.push_back({&*external, &expected});
    }
    const Replays replays = plan_.against_replay ? replays_of(problem, computed, log_) : Replays{};
    pairings.insert(pairings.end(), replays.pairings.begin(), replays.pairings.end());
    if (log_.progress) log_.progress(fmt::format("{}: comparing", file.name()));
    CompareRequest compare{plan_.tensors, request_.oracle, request_.threads, request_.judging, regime};
    compare.fixture = file.name();
    compare.chunk_size = chunk_size(problem);
    const auto file_chunk = static_cast<std::size_t>(problem.options.chunk_size);
    if (!recorded.empty() && chunk_size(problem) != file_chunk)
      compare.recorded_regime = kda::regime_of(problem, file_chunk, request_.threads);
    std::vector<report::CaseResult> cases;
    if (!plan_.tensors.empty()) cases = compared(problem, pairings, compare);
    if (request_.probe) probe_failures(problem, pairings, cases, request_.threads);
    if (problem.has_loss() && !plan_.gradients.empty())
      for (report::CaseResult& item :
           backward_cases(problem, remark.empty() ? &file : nullptr, plan_, request_, dtypes, compare, log_))
        cases.push_back(std::move(item));
    blame_expected(cases);
    if (request_.stages) compare_stages(file, problem, dtypes, regime, remark.empty());
    if (request_.invariants) try_invariants(problem, computed, external, compare, cases);
    for (report::CaseResult& item : cases) {
      item.fixture = file.name();
      item.path = file.path();
      if (!remark.empty()) item.arithmetic += (item.arithmetic.empty() ? "" : " ") + remark;
      result_.cases.push_back(std::move(item));
    }
    for (const auto& [item, reason] : replays.without)
      skip(file, *item->variant, item->options.dtype, replay_name, reason);
    if (!remark.empty()) skip_recorded(file, dtypes.front(), remark);
  }

  /// What an external program answers; nothing, and a case that says why, when it does not.
  std::optional<Answered> run_external(const Source& file, const Problem& problem) {
    if (!request_.external) return std::nullopt;
    if (log_.progress) log_.progress(fmt::format("{}: {}", file.name(), request_.external->name));
    try {
      return External(*request_.external, request_.limits, plan_.tensors).answer(problem);
    } catch (const NoAnswer& none) {
      report::CaseResult item;
      item.fixture = file.name(), item.path = file.path(), item.variant = request_.external->name;
      item.dtype = numeric::name_of(problem.dtype()), item.pass = "forward";
      item.verdict = none.verdict, item.reason = none.reason;
      result_.cases.push_back(std::move(item));
      return std::nullopt;
    }
  }

  void try_invariants(const Problem& problem, const std::vector<Computed>& computed,
                      const std::optional<Answered>& external, const CompareRequest& compare,
                      std::vector<report::CaseResult>& cases) const {
    const auto add = [&](const Answered& reference, const analysis::Subject& subject) {
      for (report::CaseResult& item : invariant_cases(problem, reference, subject, compare, log_))
        cases.push_back(std::move(item));
    };
    for (const Computed& item : computed) add(item.answer, subject_of(*item.variant, item.options));
    if (!external || !external->o || !external->final_state) return;
    const External program(*request_.external, request_.limits, {"o", "final_state"});
    add(*external, program.subject(problem));
  }

  void compare_stages(const Source& file, const Problem& problem, const std::vector<DType>& dtypes,
                      const kda::Regime& regime, bool with_recorded) {
    if (log_.progress) log_.progress(fmt::format("{}: stages", file.name()));
    const StagingRequest staging{
        plan_.variants,
        dtypes,
        request_.arithmetic,
        chunk_size(problem),
        request_.threads,
        request_.limits.memory_budget,
        regime,
        request_.backward && problem.has_loss() ? kda::Passes::both : kda::Passes::forward};
    for (report::StageCase& item : stage_cases(file, problem, staging, with_recorded))
      result_.stages.push_back(std::move(item));
  }

  /// Where a variant disagrees with a recorded answer that is itself wrong, say so.
  static void blame_expected(std::vector<report::CaseResult>& cases) {
    for (const report::CaseResult& suspect : cases) {
      if (!suspect.recorded || suspect.against != "oracle") continue;
      for (const report::TensorResult& wrong : suspect.tensors) {
        if (wrong.verdict != compare::Verdict::fail) continue;
        for (report::CaseResult& item : cases)
          for (report::TensorResult& tensor : item.tensors)
            if (item.against == suspect.variant && tensor.name == wrong.name &&
                tensor.verdict == compare::Verdict::fail)
              tensor.reason += fmt::format("; expected/{} itself fails against the oracle", suspect.variant);
      }
    }
    for (report::CaseResult& item : cases) conclude(item);
  }

  std::optional<Computed> run_variant(const Source& file, const Problem& problem, const kda::Variant& variant,
                                      DType dtype) {
    kda::RunOptions options =
        run_options(variant, problem, dtype, request_.arithmetic, chunk_size(problem), request_.threads);
    options.memory_limit = request_.limits.memory_budget;
    const std::string reason = why_not(variant, problem, options);
    if (!reason.empty()) {
      skip(file, variant, dtype, "", reason);
      return std::nullopt;
    }
    if (plan_.tensors.empty()) return std::nullopt;  // only gradients are asked for
    if (log_.progress)
      log_.progress(fmt::format("{}: {} {}", file.name(), variant.name, numeric::name_of(dtype)));
    try {
      return Computed{&variant, options, computed_answer(variant, options, variant.run(problem, options))};
    } catch (const Error& error) {
      // A device that fails takes nobody else's answer with it.
      if (!kda::is_on_gpu(variant) || error.kind() != ErrorKind::environment) throw error.in(file.path());
      result_.errors.push_back(
          {fmt::format("{}: {}", variant.name, error.in(file.path()).what()), exit_code(error.kind())});
      return std::nullopt;
    }
  }

  /// `against`: empty where the variant did not even run.
  void skip(const Source& file, const kda::Variant& variant, DType dtype, const std::string& against,
            const std::string& reason) {
    report::CaseResult item;
    item.fixture = file.name();
    item.path = file.path();
    item.variant = variant.name;
    item.dtype = numeric::name_of(dtype);
    item.device = kda::device_of(variant);
    item.pass = "forward";
    item.against = against;
    item.verdict = compare::Verdict::skipped;
    item.reason = reason;
    result_.cases.push_back(std::move(item));
  }

  /// A rounded problem is another problem: what the file expects says nothing about it.
  void skip_recorded(const Source& file, DType dtype, const std::string& remark) {
    for (const fixture::ExpectedGroup& group : file.expected())
      for (const kda::Variant* const variant : plan_.variants)
        if (plan_.wants_group(group.name))
          skip(file, *variant, dtype, group.name,
               fmt::format("{}: expected/{} answers the stored inputs", remark, group.name));
  }

  /// Why gradients are not compared, where that may surprise.
  void note_gradients(const Problem& problem, report::FixtureResult& described) const {
    if (plan_.gradients.empty()) return;
    if (!problem.has_loss()) {
      if (!request_.judging.tensors.empty())
        described.notes.push_back("gradients: not compared: without do or dht there is no loss");
      return;
    }
    std::vector<std::string> without, not_there;
    for (const kda::Variant* const variant : plan_.variants)
      if (variant->run_backward == nullptr) without.emplace_back(variant->name);
    if (!without.empty())
      described.notes.push_back(fmt::format("gradients: no backward pass in {}", join(without)));
    for (const kda::GradientRow& row : kda::gradients())
      if (!request_.judging.tensors.empty() && plan_.compares(row.name, true) &&
          !kda::has_gradient(problem, row.gradient))
        not_there.emplace_back(row.name);
    if (!not_there.empty())
      described.notes.push_back(fmt::format("gradients: this problem has no {}", join(not_there)));
  }

  void note_what_is_left(const Source& file, report::FixtureResult& described) const {
    for (const fixture::ExpectedGroup& group : file.expected()) {
      std::vector<std::string> left;
      for (const fixture::DatasetInfo& info : group.tensors) {
        const std::string name(fixture::leaf(info.path));
        if (!plan_.compares(name, has_loss_)) left.push_back(name);
      }
      if (!group.stages.empty() && !request_.stages) left.push_back("stages");
      const auto of_file = static_cast<std::size_t>(file.options().chunk_size);
      if (!group.stages.empty() && request_.stages && request_.chunk_size.value_or(of_file) != of_file)
        left.push_back(fmt::format("stages (chunks of {}, not {})", of_file, *request_.chunk_size));
      if (!left.empty())
        described.notes.push_back(fmt::format("expected/{}: not compared: {}", group.name, join(left, " ")));
    }
  }

  /// The reasons of the rules whose limits were applied.
  void note_tolerances(const Source& file, report::FixtureResult& described) const {
    if (!request_.judging.tolerances) return;
    for (const compare::ToleranceRule* const rule : request_.judging.tolerances->used_for(file.name()))
      described.notes.push_back(fmt::format("{}: {}", rule->place, rule->reason));
  }

  const RunRequest& request_;
  const RunPlan& plan_;
  const Log& log_;
  report::Result& result_;
  bool has_loss_ = false;
};

}  // namespace

report::Result run(const RunRequest& request, const Log& log) {
  const RunPlan plan = planned(request);
  report::Result result;
  result.command = "run";
  result.oracle = oracle_name(request.oracle);
  std::vector<std::string> groups_found;
  for (const std::string& path : expanded_targets(request.fixtures)) {
    try {
      for (std::string& group : FixtureRun(request, plan, log, result).run(path))
        groups_found.push_back(std::move(group));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
      result.errors.push_back({error.what(), exit_code(error.kind())});
    } catch (const std::bad_alloc&) {
      result.errors.push_back({fmt::format("out of memory ({})", path), exit_code(ErrorKind::environment)});
    }
  }
  for (const std::string& group : plan.groups)
    if (result.errors.empty() &&
        std::find(groups_found.begin(), groups_found.end(), group) == groups_found.end())
      throw Error(ErrorKind::usage,
                  fmt::format("--against {}: no fixture has a group expected/{}", group, group), {},
                  "kda-check show FILE lists them");
  return result;
}

}  // namespace kda_check::session

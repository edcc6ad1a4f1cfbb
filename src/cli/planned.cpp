// How commands work: outputs are opened, work is done, reports are written, whatever happens.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>
#include <set>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/names.hpp"
#include "cli/command.hpp"
#include "cli/shared_devices.hpp"
#include "engine/baseline_check.hpp"
#include "engine/engine.hpp"
#include "kda/shards/shared_run.hpp"
#include "mpi/mpi.hpp"
#include "plan/listing.hpp"
#include "plan/requirements.hpp"

namespace kda_check::cli {

namespace {

void say_failures(const report::Document& document, std::size_t from = 0) {
  for (std::size_t i = from; i < document.failures.size(); ++i)
    write_stderr(fmt::format("kda-check: error: {}\n", printable(document.failures[i].message)));
}

int end(Outputs& outputs, const report::Document& document) {
  const int code = outputs.finish(document);
  if (interrupted() && document.is_interrupted())
    end_by_signal(document.signal);  // not one of a merged report
  return code;
}

std::optional<engine::BaselineCheck> baseline_check_of(const Planned& planned, Names& inputs) {
  if (planned.baseline.empty()) {
    if (planned.update.empty()) return std::nullopt;
    throw Error(ErrorKind::usage, "--update-baseline of which file?", {}, "--baseline FILE.tsv");
  }
  inputs.push_back(planned.baseline);
  engine::BaselineRequest request{planned.baseline, std::nullopt};
  if (planned.update == "better") request.update = judge::Ratchet::better;
  if (planned.update == "worse") request.update = judge::Ratchet::worse;
  return std::optional<engine::BaselineCheck>(std::in_place, std::move(request));
}

std::vector<plan::Turnout> turnouts_of(const plan::Plan& plan, const report::Document& document) {
  using Outcome = plan::Turnout::Outcome;
  std::vector<plan::Turnout> list;
  std::set<std::string> failed;  // sources of which something failed
  for (const report::Failure& failure : document.failures) failed.insert(failure.path);
  for (const plan::Problem& problem : plan.problems)
    for (const plan::Case& item : problem.cases) {
      const bool is_recorded =
          item.answer && problem.answers[*item.answer].origin == plan::Answer::Origin::recorded;
      if (failed.contains(problem.source->target().name) && (item.skip.empty() || is_recorded))
        list.push_back({item.who, item.asked->place, Outcome::failed});
      else if (item.skip.empty() && item.question != plan::Question::verdict)
        list.push_back({item.who, item.asked->place, Outcome::answered});
    }
  for (const report::CaseResult& item : document.cases) {
    const bool skipped = item.verdict == judge::Verdict::skipped;
    list.push_back({item.variant, item.place, skipped ? Outcome::skipped : Outcome::answered,
                    skipped ? item.reason : ""});
  }
  return list;
}

/// A run at work: what is done of its plan, and what is said of it.
class PlannedRun {
 public:
  PlannedRun(const Words& words, Planned planned)
      : planned_(std::move(planned)),
        plan_(plan::planned(planned_.request, {planned_.shard, planned_.resources.limits, parse_run_line})) {
    document_.command = planned_.request.command;
    document_.argv = words;
    document_.judges = planned_.request.task == plan::Task::judge;
    document_.plan = plan::summary_of(plan_);
    document_.failures = plan_.failures;
  }

  /// The same wherever the same is planned of the same files.
  std::string digest() const { return plan_.digest; }

  int list() {
    Outputs outputs(planned_.output, plan_.inputs, plan_.shard);
    document_.judges = false;
    document_.sections.push_back(plan::listing(plan_));
    document_.nothing_to_do = plan_.cases == 0 ? "nothing to do" : empty_shard();
    say_failures(document_);
    return end(outputs, document_);
  }

  int run() {
    Names inputs = plan_.inputs;
    std::optional<engine::BaselineCheck> baseline = baseline_check_of(planned_, inputs);
    Outputs outputs(planned_.output, inputs, plan_.shard);
    if (!plan_.shard.source.empty())
      say(fmt::format("shard {} by {}", plan_.shard.text(), plan_.shard.source));
    for (const std::string& warning : plan_.warnings) warn(warning);
    Progress progress;
    execute(outputs, progress, baseline);
    progress.clear();
    conclude(baseline);
    say_failures(document_);
    return end(outputs, document_);
  }

 private:
  std::string empty_shard() const {
    if (!plan_.problems.empty() || plan_.shard.is_whole() || plan_.cases == 0) return {};
    return fmt::format("nothing to do: shard {} has none of the {} cases", plan_.shard.text(), plan_.cases);
  }

  engine::BaselineScope scope() const {
    const bool left_out = std::ranges::any_of(document_.cases, [](const report::CaseResult& item) {
      return std::ranges::any_of(item.tensors, &report::TensorResult::reference_fails);
    });
    if (left_out || planned_.request.selection.tensors) return engine::BaselineScope::some_tensors;
    return plan_.narrowed ? engine::BaselineScope::some_comparisons : engine::BaselineScope::everything;
  }

  /// Another part may meet what this one does not.
  void leave_to_merge(std::vector<report::Demand> demands) {
    for (const report::Failure& failure : report::unmet(demands))
      say(fmt::format("in this part {}; merge judges the whole", failure.message));
    document_.plan->demands = std::move(demands);
  }

  void execute(Outputs& outputs, Progress& progress, std::optional<engine::BaselineCheck>& baseline) {
    engine::Execution execution;
    execution.resources = {planned_.resources.threads, planned_.resources.limits, outputs.draw(),
                           [&](const std::string& text) { progress.warn(text); },
                           [&](const std::string& text) { progress.show(text); }};
    execution.done = [&](const engine::Done& done) { progress.done(done); };
    const auto finished = [&](report::Document part) {
      if (baseline) baseline->judge(part.cases);
      part.command = document_.command;
      progress.clear();
      outputs.add(part);
      document_.add(std::move(part));
    };
    std::size_t cases = 0;
    for (const plan::Problem& problem : plan_.problems) cases += problem.cases.size();
    progress.begin(plan_.seconds(), cases);
    try {
      engine::execute(plan_, execution, finished);
    } catch (const Interrupted& by) {
      document_.signal = by.signal;
    } catch (const std::bad_alloc&) {
      fail_for_memory();
    }
  }

  /// What is known by then is reported, and is not the whole.
  void fail_for_memory() {
    document_.failures.push_back({"out of memory; hint: smaller fixtures, a smaller shape or fewer --threads",
                                  exit_code(ErrorKind::environment),
                                  {}});
  }

  void conclude(std::optional<engine::BaselineCheck>& baseline) {
    document_.nothing_to_do = empty_shard();
    std::vector<report::Demand> demands;
    if (!document_.is_interrupted())
      demands = plan::demands(plan_, planned_.request, turnouts_of(plan_, document_));
    if (!document_.is_part())
      std::ranges::move(report::unmet(demands), std::back_inserter(document_.failures));
    if (baseline)
      for (const std::string& line : baseline->findings(document_, scope(), demands)) say(line);
    if (document_.is_part()) leave_to_merge(std::move(demands));
    if (!baseline) return;
    try {
      for (const std::string& line : baseline->update(document_, scope())) say(line);
    } catch (const Error& error) {  // the reports are to say so
      document_.failures.push_back({error.what(), exit_code(error.kind()), {}});
    } catch (const std::bad_alloc&) {
      fail_for_memory();
    }
  }

  const Planned planned_;
  const plan::Plan plan_;
  report::Document document_;
};

}  // namespace

int tell(const Words& words, const OutputOptions& output, const Names& inputs,
         const std::function<void(Outputs&, Progress&, report::Document&)>& work) {
  Outputs outputs(output, inputs);
  Progress progress;
  report::Document document;
  try {
    work(outputs, progress, document);
  } catch (const Interrupted& by) {
    document.signal = by.signal;
  }
  if (document.command.empty()) document.command = words.front();  // a report of run stays one when merged
  document.argv = words;
  progress.clear();
  say_failures(document);
  outputs.add(document);
  return end(outputs, document);
}

void add_dry_run(Parser& parser, Planned& planned) {
  parser.flag("--dry-run", planned.dry_run, "List what would be done, and how long it may take; do nothing");
}

namespace {

/// Throws Error{usage} for what processes cannot share.
void check_shared_by_mpi(const Planned& planned) {
  if (!planned.shard.source.empty())
    throw Error(ErrorKind::usage,
                "--shard auto takes each rank for a part; with --segments mpi they share one", {},
                "--shard I/N");
  check_shared(planned.request, SharedBy::mpi);
}

/// Rank 0 works as it would alone, but for what is handed out; the others serve it. One process speaks.
int run_on_ranks(const Words& words, Planned planned) {
  const std::unique_ptr<Ranks> ranks = mpi::join(
      std::chrono::seconds(planned.rank_timeout.value_or(60)),
      [](const std::string& what) { write_stderr(fmt::format("kda-check: error: {}\n", printable(what))); });
  const int threads = planned.resources.threads;
  const std::size_t memory_limit = planned.resources.limits.memory_budget;
  // What is planned is whole on rank 0 alone; others look when they know their part.
  if (ranks->rank() != 0) planned.resources.limits.memory_budget = std::numeric_limits<std::size_t>::max();
  mpi::Identity identity{mpi::program_identity(), {}, {}};
  std::optional<PlannedRun> run;
  try {
    check_shared_by_mpi(planned);
    planned.request.arithmetic.push_back(fmt::format("segments=tree:{}", ranks->count()));
    identity.work = run.emplace(words, std::move(planned)).digest();
  } catch (const Error& error) {
    if (ranks->rank() == 0) throw;
    identity.problem = error.what();
  }
  if (!mpi::agree(*ranks, identity)) return exit_code(ErrorKind::environment);
  if (ranks->rank() != 0) {
    kda::serve(*ranks, threads, memory_limit, kda::run_chunk);
    return 0;
  }
  kda::share_runs(ranks.get());
  const int code = run->run();
  const std::vector<kda::RankCost> costs = kda::let_go(*ranks);
  for (std::size_t rank = 0; rank < costs.size(); ++rank)
    say(fmt::format("rank {} of {}: {} tokens, {:.3g} s, {:.3g} s of a processor, {:.0f} MB", rank,
                    costs.size(), costs[rank].tokens, costs[rank].seconds, costs[rank].busy,
                    costs[rank].megabytes));
  return code;
}

int run_on_devices(const Words& words, Planned planned) {
  check_shared(planned.request, SharedBy::nccl);
  const SharedDevices devices;
  devices.add_to(planned.request);
  const int code = PlannedRun(words, std::move(planned)).run();
  devices.say_costs();
  return code;
}

}  // namespace

int run_planned(const Words& words, Planned planned) {
  if (planned.shared_by == SharedBy::mpi && !planned.dry_run)
    return mpi::guarded([&] { return run_on_ranks(words, std::move(planned)); });
  if (planned.shared_by == SharedBy::nccl && !planned.dry_run)
    return run_on_devices(words, std::move(planned));
  const bool list = planned.dry_run;
  PlannedRun run(words, std::move(planned));
  return list ? run.list() : run.run();
}

}  // namespace kda_check::cli

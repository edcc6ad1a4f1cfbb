// `attribute`: what each axis of the arithmetic and each stage makes of an error; the steps between two
// answers.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "engine/findings.hpp"
#include "explain/names/axis_study.hpp"
#include "explain/names/ladder.hpp"
#include "explain/stages/stage_runs.hpp"
#include "kda/arithmetic/launch_words.hpp"
#include "plan/selection.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using plan::Case;
using plan::Question;
using report::Show;
using report::Value;

constexpr auto precision = kda::OraclePrecision::double_double;

/// The exact values of all tensors of a pass. Throws Error{input} when those of the gradients do not fit.
hypotheses::HeldOracle hold_pass(Context& context, const plan::Request& asked, kda::Pass pass,
                                 std::size_t chunk_size) {
  context.progress("oracle");
  const Resources& resources = context.resources();
  if (pass == kda::Pass::forward)
    return hypotheses::hold_oracle(context.problem(), context.oracle(precision, asked, pass),
                                   resources.threads);
  check_gradient_memory(context.problem(), resources.threads, resources.limits.memory_budget,
                        "--memory-limit raises it");
  return hypotheses::hold_gradient_oracle(context.problem(), context.oracle(precision, asked, pass),
                                          chunk_size, resources.threads);
}

report::Section attribution_section(const Context& context) {
  report::Section section;
  section.key = "attributions";
  section.path = context.plan().source->target().name;
  section.columns = {{"variant", {}},
                     {"dtype", {}, Show::data},
                     {"compute", {}, Show::data},
                     {"arithmetic", {}, Show::data},
                     {"pass", {}, Show::data},
                     {"tensor", {}},
                     {"rms_ratio", {}, Show::figure},
                     {"ideal", {}, Show::data},
                     {"ideal_share", {}, Show::data},
                     {"interaction", {}, Show::data},
                     {"note", {}, Show::sentence},
                     {"launch", {}, Show::sentence},
                     {"repro", {}, Show::data}};
  return section;
}

report::Table axes_of(const explain::Attribution& item) {
  report::Table table;
  table.key = "axes";
  table.columns = {{"axis", {}},
                   {"value", "as computed", Show::code},
                   {"only", "only this", Show::figure},
                   {"without", "all but this", Show::figure},
                   {"share", {}, Show::share}};
  for (const explain::AxisShare& axis : item.axes)
    table.rows.push_back({axis.axis, axis.value, axis.only, axis.without, axis.share});
  table.rows.push_back({std::string("(none: ideal)"), std::string(), item.ideal, Value(), item.ideal_share});
  table.rows.push_back({std::string("interaction"), std::string(), Value(), Value(), item.interaction});
  return table;
}

report::Table stages_of(const std::vector<explain::StageShare>& stages) {
  report::Table table;
  table.key = "stages";
  table.columns = {{"stage", {}},
                   {"own", "own error", Show::figure},
                   {"given", "o with it exact", Show::figure},
                   {"share", {}, Show::share}};
  for (const explain::StageShare& stage : stages)
    table.rows.push_back({stage.stage, stage.own, stage.given, stage.share});
  return table;
}

/// The truths that attributions of one problem share.
class Truths {
 public:
  explicit Truths(Context& context) : context_(context) {}

  const hypotheses::HeldOracle& oracle(const plan::Request& asked, kda::Pass pass, std::size_t chunk_size) {
    if (!oracle_ || pass_ != pass || chunk_size_ != chunk_size) {
      oracle_.reset();
      oracle_ = hold_pass(context_, asked, pass, chunk_size);
      pass_ = pass, chunk_size_ = chunk_size;
    }
    return *oracle_;
  }
  /// Throws Error{input} when those of the stages do not fit.
  void check_stages(std::size_t chunk_size) const {
    explain::check_stage_memory(context_.problem(), chunk_size, context_.resources().limits.memory_budget);
  }
  const kda::StageTruths& stages(std::size_t chunk_size) {
    if (!stages_ || stages_chunk_size_ != chunk_size) {
      stages_ = kda::run_stage_oracle(context_.problem(), chunk_size, context_.resources().threads);
      stages_chunk_size_ = chunk_size;
    }
    return *stages_;
  }

 private:
  Context& context_;
  std::optional<hypotheses::HeldOracle> oracle_;
  std::optional<kda::StageTruths> stages_;
  kda::Pass pass_ = kda::Pass::forward;
  std::size_t chunk_size_ = 0, stages_chunk_size_ = 0;
};

/// Of a recorded answer: how far it is from what is said to compute as it does. Empty where that explains it.
std::string doubt_about(Context& context, const Case& item, const std::string& tensor,
                        const hypotheses::HeldOracle& oracle) {
  const plan::Answer& who = context.plan().answers[*item.answer];
  if (who.is_computed()) return {};
  const Answered& recorded = context.answer(*item.answer, item.pass);
  const Answered& taken_for = context.answer(item.computed_as, item.pass);
  const double error = hypotheses::rms(hypotheses::difference(*recorded.tensor(tensor), oracle.at(tensor)));
  const double apart =
      hypotheses::rms(hypotheses::difference(*taken_for.tensor(tensor), *recorded.tensor(tensor)));
  const double left = error == 0 ? 0 : apart / error;
  const std::string form = taken_for.name + " in " + taken_for.arithmetic;
  if (left > 0.5)
    return fmt::format(
        "expected/{} does not compute as {}: what is between them is {:.0f} % of its error. The "
        "shares say nothing of it; --as names another form",
        who.name, form, 100 * left);
  return fmt::format("expected/{} as {}: what is between them is {:.2g} % of its error", who.name, form,
                     100 * left);
}

/// Of a recorded answer: the launch that was found in its bits. Empty where nobody looked for one.
std::string launch_text(const Context& context, const std::string& name, std::size_t computed_as,
                        kda::Pass pass) {
  const hypotheses::FoundLaunch* const found = context.found_launch(computed_as, pass);
  if (found == nullptr) return {};
  return fmt::format("launch={}: found in the bits of {}, of which it leaves {} of {} elements different",
                     kda::words_of(found->launch), name, found->differing, found->elements);
}

void attribute_case(Context& context, const Case& item, Truths& truths, report::Section& section) {
  const plan::Problem& problem = context.plan();
  const plan::Answer &who = problem.answers[*item.answer],
                     &on_cpu = context.with_launch(item.computed_as, item.pass);
  const plan::Answer& computed = who.is_computed() ? who : on_cpu;
  const kda::RunOptions options = context.options_of(computed);
  const auto is_answered = [&](const std::string& name) {
    return who.is_computed() || problem.source->expected_named(who.name)->tensor(name) != nullptr;
  };
  const std::string_view no_stages = plan::why_no_stages(options.arithmetic);
  const bool with_stages = computed.variant->axes.chunk && no_stages.empty() &&
                           std::ranges::find(item.tensors, "o") != item.tensors.end() && is_answered("o");
  if (with_stages) truths.check_stages(options.chunk_size);  // before any work
  const hypotheses::HeldOracle& oracle = truths.oracle(*item.asked, item.pass, options.chunk_size);
  context.progress(fmt::format("{} {}", item.who, numeric::name_of(options.dtype)));
  const explain::AxisStudy study(context.problem(), *computed.variant, *on_cpu.variant, options, item.pass,
                                 oracle);
  const Answered described_as = described(computed, item.pass, problem);
  const std::string dtype(numeric::name_of(options.dtype)),
      compute(numeric::row_of(described_as.compute).name);
  for (const std::string& name : item.tensors) {
    if (!is_answered(name)) continue;
    const explain::Attribution found = study.tensor(name);
    report::Entry entry;
    entry.title = fmt::format("{} {}, {}: rms_ratio {} against the oracle", item.who,
                              report::precision_text(dtype, compute), name, report::short_number(found.full));
    std::string note = found.note;
    if (const std::string doubt = doubt_about(context, item, name, oracle); !doubt.empty())
      note += (note.empty() ? "" : "; ") + doubt;
    if (name == "o" && computed.variant->axes.chunk && !no_stages.empty())
      note += fmt::format("{}no shares of stages: {}", note.empty() ? "" : "; ", no_stages);
    entry.values = {item.who,
                    dtype,
                    compute,
                    described_as.arithmetic,
                    std::string(kda::name_of(item.pass)),
                    name,
                    found.full,
                    found.ideal,
                    found.ideal_share,
                    found.interaction,
                    note,
                    launch_text(context, item.who, item.computed_as, item.pass),
                    item.repro};
    entry.tables.push_back(axes_of(found));
    if (name == "o" && with_stages)
      entry.tables.push_back(
          stages_of(explain::stage_shares(context.problem(), *on_cpu.variant, options, oracle,
                                          truths.stages(options.chunk_size), found.full)));
    section.entries.push_back(std::move(entry));
  }
}

explain::LadderEnd end_of(Context& context, const std::string& name, std::size_t answer,
                          std::size_t computed_as, kda::Pass pass) {
  const plan::Answer& as = context.with_launch(computed_as, pass);
  explain::LadderEnd end{name, as.variant, context.options_of(as), nullptr};
  if (answer != computed_as) end.answered = &context.answer(answer, pass).tensors;
  return end;
}

void climb(Context& context, const Case& item, report::Section& section) {
  const explain::LadderEnd to = end_of(context, item.who, *item.answer, item.computed_as, item.pass);
  const explain::LadderEnd from =
      end_of(context, item.reference.name, item.reference.answer, item.reference_computed_as, item.pass);
  std::string launches;
  for (const auto& [name, as] :
       {std::pair(from.name, item.reference_computed_as), std::pair(to.name, item.computed_as)})
    if (const std::string found = launch_text(context, name, as, item.pass); !found.empty())
      launches += (launches.empty() ? "" : "; ") + found;
  const auto progress = [&](const std::string& step) { context.progress(step); };
  for (const explain::Ladder& ladder :
       explain::ladders_between(from, to, item.pass, context.problem(), item.tensors, progress)) {
    report::Entry entry;
    entry.title = fmt::format("from {} to {}, {}", from.name, to.name, ladder.tensor);
    // The last step leads to the answer itself: what is left before it nothing of ours explains.
    const double unexplained =
        to.answered != nullptr && !ladder.rungs.empty() ? ladder.rungs.back().share : 0;
    const std::string doubt =
        unexplained > 0.5 ? fmt::format(
                                "{} is not what {} computes: {:.1f} % of the difference is left when all "
                                "steps are taken; --as names another form",
                                to.name, to.variant->name, 100 * unexplained)
                          : std::string();
    entry.values = {from.name,
                    to.name,
                    std::string(kda::name_of(item.pass)),
                    ladder.tensor,
                    static_cast<std::int64_t>(ladder.elements),
                    doubt,
                    launches,
                    item.repro};
    report::Table table;
    table.key = "rungs";
    table.columns = {{"change", "step", Show::code},
                     {"remaining", "rms_ratio left", Show::figure},
                     {"differing", "elements that differ", Show::count},
                     {"share", {}, Show::share}};
    for (const explain::Rung& rung : ladder.rungs)
      table.rows.push_back(
          {rung.change, rung.remaining, static_cast<std::int64_t>(rung.differing), rung.share});
    entry.tables.push_back(std::move(table));
    section.entries.push_back(std::move(entry));
  }
}

/// A case that fails takes nothing of the others with it.
template <class Body>
void over(Context& context, Question question, Findings& findings, Body body) {
  for (const Case& item : context.plan().cases) {
    if (item.question != question) continue;
    try {
      body(item);
    } catch (const NoAnswer& none) {
      findings.notes.push_back(fmt::format("skipped: {}: {}", item.who, none.reason));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
      const std::string text = error.what();  // of several cases mostly the same
      if (std::ranges::find(context.failures, text, &report::Failure::message) == context.failures.end())
        context.failures.push_back({text, exit_code(error.kind()), context.plan().source->target().name});
    }
    context.release();
  }
}

}  // namespace

void attribute_errors(Context& context, Findings& findings) {
  Truths truths(context);
  keep_finished(findings, attribution_section(context), [&](report::Section& section) {
    over(context, Question::attribution, findings,
         [&](const Case& item) { attribute_case(context, item, truths, section); });
  });
}

void climb_ladders(Context& context, Findings& findings) {
  report::Section section;
  section.key = "ladders";
  section.path = context.plan().source->target().name;
  section.columns = {{"from", {}},
                     {"to", {}},
                     {"pass", {}, Show::data},
                     {"tensor", {}},
                     {"elements", {}, Show::data},
                     {"doubt", {}, Show::sentence},
                     {"launch", {}, Show::sentence},
                     {"repro", {}, Show::data}};
  keep_finished(findings, std::move(section), [&](report::Section& finished) {
    over(context, Question::ladder, findings, [&](const Case& item) { climb(context, item, finished); });
  });
}

}  // namespace kda_check::engine

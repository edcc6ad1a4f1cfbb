// `explain-bits`: which of the ways to compute that we know a recorded answer, or its gradients, come from.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/names.hpp"
#include "engine/findings.hpp"
#include "explain/names/bit_search.hpp"
#include "explain/names/stage_bits.hpp"
#include "explain/stages/stage_runs.hpp"
#include "hypotheses/errors.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using explain::Left;
using explain::TriedWay;
using report::Show;
using report::Value;

Value count(std::size_t number) { return static_cast<std::int64_t>(number); }

report::Section section_of(const Context& context) {
  report::Section section;
  section.key = "bits";
  section.path = context.plan().source->target().name;
  section.columns = {{"group", {}},
                     {"pass", {}, Show::data},
                     {"dtype", {}, Show::data},
                     {"variant", {}, Show::data},
                     {"preset", {}, Show::data},
                     {"chunk_size", {}, Show::data},
                     {"arithmetic", {}, Show::data},
                     {"change", {}, Show::data},
                     {"differing", {}, Show::data},
                     {"elements", {}, Show::data},
                     {"first", {}, Show::data},
                     {"tried", {}, Show::data},
                     {"tried_text", {}, Show::sentence},
                     {"repro", {}, Show::data}};
  return section;
}

std::string place_of(const Left& left, const tensor::Shape& shape, const kda::Problem& problem) {
  return left.first
             ? kda::place(left.tensor, tensor::index_of(shape, *left.first), problem.options.state_v_first)
             : std::string();
}

/// The stages that the file has, in chunks as long as those of the way; empty where they cannot be compared.
std::vector<Left> stages_left(const Context& context, const fixture::ExpectedGroup& group,
                              const hypotheses::Hypothesis& way) {
  const std::size_t chunk_size = way.options.chunk_size;
  if (!way.variant->axes.chunk || group.stages.empty() || chunk_size != context.plan().outline.chunk_size() ||
      explain::stage_bytes(context.problem(), chunk_size, kda::Passes::forward) > context.memory_left())
    return {};
  kda::StageTensors recorded;
  for (const kda::StageRow& row : kda::stages())
    for (const fixture::DatasetInfo& info : group.stages)
      if (fixture::leaf(info.path) == row.name)
        recorded[static_cast<std::size_t>(row.stage)] = context.source().read(info);
  kda::RunOptions options = way.options;
  options.threads = context.resources().threads;
  return explain::differing_stages(context.problem(), *way.variant, options, recorded,
                                   !group.natural_g_cumsum);
}

/// "12 of 4096 elements of o"
std::string left_text(const Left& left) {
  return fmt::format("{} of {} of {}", left.differing, report::counted(left.elements, "element"),
                     left.tensor);
}

bool leaves_nothing(const TriedWay& tried) { return explain::differing_of(tried.tensors) == 0; }

std::string reason_of(const std::vector<TriedWay>& nearest, const std::string& first,
                      const kda::Problem& problem) {
  const TriedWay& best = nearest.front();
  const std::string way = hypotheses::text_of(best.way, problem);
  std::vector<std::string> names, counts;
  for (const Left& left : best.tensors) names.push_back(left.tensor), counts.push_back(left_text(left));
  if (leaves_nothing(best))
    return fmt::format("every bit of {} is {}{}", join(names, names.size() > 2 ? ", " : " and "), way,
                       std::ranges::count_if(nearest, leaves_nothing) > 1
                           ? ", and others leave none: these bits do not tell them apart"
                           : "");
  return fmt::format("nothing known explains them; the nearest, {}, leaves {}; the first is {}", way,
                     join(counts, ", "), first);
}

report::Table tensors_table(const std::vector<Left>& answers, const std::vector<Left>& stages) {
  report::Table table;
  table.key = "tensors";
  table.title = "what the nearest leaves";
  table.columns = {{"tensor", {}}, {"differing", "differ", Show::count}, {"elements", "of", Show::count}};
  for (const std::vector<Left>* const list : {&answers, &stages})
    for (const Left& left : *list)
      table.rows.push_back({left.tensor, count(left.differing), count(left.elements)});
  return table;
}

report::Table nearest_table(const std::vector<TriedWay>& nearest, const kda::Problem& problem) {
  constexpr std::size_t shown = 6;
  report::Table table;
  table.key = "nearest";
  table.title = "the nearest";
  table.columns = {
      {"way", {}, Show::code}, {"differing", "differ", Show::count}, {"elements", "of", Show::count}};
  for (std::size_t i = 0; i < std::min(shown, nearest.size()); ++i)
    table.rows.push_back({hypotheses::text_of(nearest[i].way, problem),
                          count(explain::differing_of(nearest[i].tensors)),
                          count(explain::elements_of(nearest[i].tensors))});
  return table;
}

/// The sum that decides no way, as its order is that of all heads: what the nearest leaves of it.
std::vector<Left> bias_left(const Context& context, const kda::Tensors& recorded,
                            const hypotheses::Hypothesis& way) {
  constexpr char name[] = "ddt_bias";
  const auto found = recorded.find(name);
  if (found == recorded.end()) return {};
  kda::RunOptions options = way.options;
  options.threads = context.resources().threads;
  const kda::Tensors got = kda::run_pass(way.pass, *way.variant, context.problem(), options);
  const tensor::Tensor &ours = got.at(name), &theirs = found->second;
  if (ours.dtype() != theirs.dtype() || ours.size() != theirs.size()) return {};
  return {{name, hypotheses::differing_bits(ours, theirs), theirs.size(), {}}};
}

/// What explains one pass of an answer: the ways that are nearest.
std::vector<TriedWay> explain_pass(Context& context, const plan::Case& item, kda::Pass pass,
                                   const std::vector<TriedWay>& forward, report::Section& section) {
  const bool is_forward = pass == kda::Pass::forward;
  const plan::Answer& who = context.plan().answers[*item.answer];
  const fixture::ExpectedGroup& group = *context.plan().source->expected_named(who.name);
  const kda::Problem& problem = context.problem();
  const Answered& answered = context.answer(*item.answer, pass);
  const hypotheses::RecordedOutput recorded(problem, pass, answered.tensors, who.dtype);
  explain::BitSearch found = explain::search_bits(
      recorded, forward, who.dtype, context.resources().threads, [&](const std::string& what) {
        context.progress(fmt::format("{}{}: {}", who.name, is_forward ? "" : " backwards", what));
      });
  if (found.nearest.empty())
    throw NoAnswer{judge::Verdict::skipped, "no variant answers in the element types that are recorded"};
  const TriedWay& best = found.nearest.front();
  const std::vector<Left> beside =
      is_forward ? stages_left(context, group, best.way) : bias_left(context, answered.tensors, best.way);
  const std::size_t differing = explain::differing_of(best.tensors);
  std::string first;
  for (const Left& left : best.tensors)
    if (first.empty()) first = place_of(left, answered.tensor(left.tensor)->shape(), problem);
  report::Entry entry;
  entry.title =
      fmt::format("{} of {}, {}", is_forward ? "bits" : "gradients", who.name, numeric::name_of(who.dtype));
  entry.verdict = differing == 0 ? judge::Verdict::pass : judge::Verdict::fail;
  entry.reason = reason_of(found.nearest, first, problem);
  std::string not_explained;
  for (const auto& [name, tensor] : answered.tensors) {
    if (recorded.tensors().contains(name) || (!beside.empty() && beside.front().tensor == name)) continue;
    not_explained += fmt::format("; {} is not compared: no variant gives it in {} or in that shape", name,
                                 numeric::name_of(tensor.dtype()));
  }
  if (!is_forward && explain::differing_of(beside) > 0)
    not_explained += fmt::format("; {} differ, whose sums are of all heads", left_text(beside.front()));
  if (!not_explained.empty() && differing == 0) entry.verdict = judge::Verdict::inconclusive;
  entry.reason += not_explained;
  entry.values = {who.name,
                  std::string(kda::name_of(pass)),
                  std::string(numeric::name_of(who.dtype)),
                  std::string(best.way.variant->name),
                  best.way.preset,
                  count(best.way.options.chunk_size),
                  hypotheses::arithmetic_words(best.way, problem),
                  best.way.change,
                  count(differing),
                  count(explain::elements_of(best.tensors)),
                  first,
                  count(found.tried),
                  fmt::format("{} tried", report::counted(found.tried, "way")),
                  item.repro};
  entry.tables = {tensors_table(best.tensors, beside), nearest_table(found.nearest, problem)};
  section.entries.push_back(std::move(entry));
  return std::move(found.nearest);
}

void explain_case(Context& context, const plan::Case& item, report::Section& section) {
  std::vector<TriedWay> forward;
  for (const kda::Pass pass : kda::every_pass) {
    const std::vector<std::string> names = kda::tensors_of(pass);
    if (std::ranges::find_first_of(item.tensors, names) != item.tensors.end())
      forward = explain_pass(context, item, pass, forward, section);
  }
}

}  // namespace

void explain_bits(Context& context, Findings& findings) {
  keep_finished(findings, section_of(context), [&](report::Section& section) {
    for (const plan::Case& item : context.plan().cases) {
      if (item.question != plan::Question::bits) continue;
      try {
        explain_case(context, item, section);
      } catch (const NoAnswer& none) {
        findings.notes.push_back(fmt::format("skipped: {}: {}", item.who, none.reason));
      }
      context.release();
    }
  });
}

}  // namespace kda_check::engine

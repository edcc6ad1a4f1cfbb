#include "plan/listing.hpp"

#include <fmt/format.h>

#include "base/names.hpp"
#include "report/rows.hpp"

namespace kda_check::plan {

namespace {

using report::Show;
using report::Value;

/// "chunk bf16 decay=pair", "fla_chunk, recorded"
std::string answer_text(const Case& item, const Problem& problem) {
  if (!item.answer) return item.who;
  const Answer& answer = problem.answers[*item.answer];
  if (answer.origin == Answer::Origin::recorded) return item.who + ", recorded";
  if (answer.origin == Answer::Origin::external) return item.who + ", a program";
  std::string text = fmt::format("{} {}", item.who, numeric::name_of(answer.dtype));
  for (const std::string& word : item.asked->arithmetic) text += " " + word;
  return text;
}

/// "derived; rms_ratio: @ci:24"
std::string limits_text(const Case& item) {
  if (item.question != Question::verdict || !item.skip.empty()) return {};
  Names parts{item.reference.kind == Reference::Kind::replay ? "no bit may differ"
              : item.reference.kind == Reference::Kind::law  ? "the law's"
                                                             : "derived"};
  for (const std::vector<judge::LimitLayer>& layers : item.limits)
    for (const judge::LimitLayer& layer : layers)
      for (const judge::LimitRequest& request : layer.requests)
        parts.push_back(fmt::format("{}: {}", request.metric, layer.source));
  return join(without_repeats(std::move(parts)), "; ");
}

void add(report::Section& section, const Case& item, const Problem& problem) {
  const std::string remark = problem.remark();
  section.add_fields(
      {{{"number", {}, Show::count}, static_cast<std::int64_t>(item.number)},
       {{"place", "asked by"}, item.asked->place},
       {{"target", {}}, problem.source->target().name + (remark.empty() ? "" : ", " + remark)},
       {{"question", {}, Show::words, report::Detail::verbose}, std::string(name_of(item.question))},
       {{"answer", {}}, answer_text(item, problem)},
       {{"against", {}}, item.reference.name},
       {{"pass", {}}, std::string(kda::name_of(item.pass))},
       {{"tensors", {}}, item.tensors},
       {{"limits", {}}, limits_text(item)},
       {{"seconds", {}, Show::figure, report::Detail::verbose}, item.seconds},
       {{"skip", "skipped because"}, item.skip},
       {{"repro", {}, Show::code, report::Detail::verbose}, item.repro}});
}

}  // namespace

report::Section listing(const Plan& plan) {
  report::Section section;
  section.key = "cases_planned";
  section.tabular = true;
  for (const Problem& problem : plan.problems)
    for (const Case& item : problem.cases) add(section, item, problem);
  std::size_t here = 0;
  for (const Problem& problem : plan.problems) here += problem.cases.size();
  section.notes.push_back(
      fmt::format("{} of {}{}, about {:.2g} s on one thread", report::counted(here, "case"),
                  report::counted(plan.problems.size(), "problem"),
                  plan.shard.is_whole() ? std::string() : ", shard " + plan.shard.text(), plan.seconds()));
  return section;
}

report::PlanSummary summary_of(const Plan& plan) {
  return {plan.digest, plan.cases, plan.shard.index, plan.shard.count, {}};
}

report::ProblemResult described(const Source& source) {
  return {source.name(),
          source.target().name,
          shape_text(source.outline().dimensions),
          options_text(source.outline()),
          {}};
}

}  // namespace kda_check::plan

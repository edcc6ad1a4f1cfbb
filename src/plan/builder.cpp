#include "plan/builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "hypotheses/launch_search.hpp"
#include "plan/cost.hpp"
#include "plan/repro.hpp"

namespace kda_check::plan {

using numeric::DType;

namespace {

using Add = void (*)(Builder&, const Asked&);

Add adder_of(Task task) {
  switch (task) {
    case Task::judge:
      return add_verdicts;
    case Task::power:
      return add_powers;
    case Task::capture:
      return add_captures;
    case Task::explain:
      break;
  }
  return add_explanations;
}

/// Two answers are one when nothing tells them apart.
bool same(const Answer& a, const Answer& b) {
  return a.origin == b.origin && a.name == b.name && a.variant == b.variant && a.dtype == b.dtype &&
         a.options.arithmetic == b.options.arithmetic && a.options.chunk_size == b.options.chunk_size &&
         a.program == b.program && a.launched_as == b.launched_as;
}

}  // namespace

void Builder::add(const std::shared_ptr<const Request>& request, const std::vector<Target>& targets) {
  if (!request->tolerance.empty() && !tolerances_.contains(request->tolerance)) {
    tolerances_.emplace(request->tolerance,
                        std::make_shared<judge::Tolerances>(judge::Tolerances::read(request->tolerance)));
    plan_.inputs.push_back(request->tolerance);
  }
  std::vector<NamedGroup> named;
  for (const std::string& name : plan::named_groups(*request)) {
    const auto in_line = [&](const std::optional<Names>& list) { return list && has(*list, name); };
    const bool of_line = in_line(request->selection.against) || in_line(request->selection.recorded);
    named.push_back({name, of_line ? request->place : std::string(command_line)});
  }
  for (const Target& target : targets) {
    Asked asked{request, nullptr, {}};
    try {
      asked.source = looked_at(target);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage && request->place != command_line) throw error.in(request->place);
      if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
      plan_.failures.push_back({error.what(), exit_code(error.kind()), target.name});
      for (NamedGroup& group : named) group.found = true;  // it may have been there
      continue;
    }
    for (NamedGroup& group : named)
      group.found = group.found || asked.source->expected_named(group.name) != nullptr;
    Asked::Part as_stored{0, {}, true};
    std::vector<DType> rounded;
    for (const DType dtype : dtypes_of(*request, asked.source->outline()))
      (holds_exactly(dtype, asked.source->outline().dtype()) ? as_stored.dtypes : rounded).push_back(dtype);
    for (const DType dtype : rounded)
      asked.parts.push_back({problem_of(asked.source, dtype), {dtype}, false});
    if (!as_stored.dtypes.empty()) {
      as_stored.problem = problem_of(asked.source, std::nullopt);
      asked.parts.push_back(std::move(as_stored));
    }
    adder_of(request->task)(*this, asked);
  }
  named_groups_.insert(named_groups_.end(), named.begin(), named.end());
}

void Builder::finish() {
  for (const NamedGroup& group : named_groups_) {
    // What the command line names may be there in any line.
    const bool elsewhere = std::ranges::any_of(named_groups_, [&](const NamedGroup& other) {
      return other.found && other.name == group.name &&
             (other.place == group.place || group.place == command_line);
    });
    if (!elsewhere)
      throw Error(ErrorKind::usage, fmt::format("no fixture has a group expected/{}", group.name),
                  group.place == command_line ? std::string() : group.place,
                  "kda-check show FILE lists them");
  }
  if (!plan_.narrowed)
    for (const auto& [path, file] : tolerances_)
      for (const judge::ToleranceRule* const rule : file->unused())
        plan_.failures.push_back(
            {fmt::format("a rule of the tolerances matched nothing ({}); hint: remove it, "
                         "or correct its conditions",
                         rule->place),
             1,
             {}});
  gather_by_source();
  std::size_t number = 0;
  for (Problem& problem : plan_.problems) {
    for (Case& item : problem.cases) {
      item.number = ++number;
      item.seconds = seconds_of(item, problem);
      item.repro = repro_line(item, problem);
    }
    problem.seconds = seconds_of(problem);
    problem.bytes = bytes_of(problem);
  }
  plan_.cases = number;
  plan_.digest = digest_of(plan_);
}

std::shared_ptr<const Source> Builder::looked_at(const Target& target) {
  std::shared_ptr<const Source>& known = sources_[target.path];
  if (known) return known;
  known = std::make_shared<Source>(Source::look(target, limits_));
  plan_.inputs.push_back(target.path);
  for (const std::string& text : known->warnings())
    plan_.warnings.push_back(fmt::format("{} ({})", text, target.path));
  return known;
}

void Builder::gather_by_source() {
  std::map<const Source*, std::size_t> order;
  for (const Problem& problem : plan_.problems) order.emplace(problem.source.get(), order.size());
  std::ranges::stable_sort(plan_.problems, {},
                           [&](const Problem& problem) { return order.at(problem.source.get()); });
}

std::size_t Builder::problem_of(const std::shared_ptr<const Source>& source, std::optional<DType> rounded) {
  for (std::size_t i = 0; i < plan_.problems.size(); ++i)
    if (plan_.problems[i].source == source && plan_.problems[i].rounded_to == rounded) return i;
  Problem& problem = plan_.problems.emplace_back();
  problem.source = source;
  problem.rounded_to = rounded;
  problem.outline = rounded ? source->outline().rounded_to(*rounded) : source->outline();
  return plan_.problems.size() - 1;
}

std::size_t Builder::keep(const Asked::Part& part, Answer answer) {
  std::vector<Answer>& answers = problem(part).answers;
  for (std::size_t i = 0; i < answers.size(); ++i)
    if (same(answers[i], answer)) return i;
  answers.push_back(std::move(answer));
  return answers.size() - 1;
}

std::size_t Builder::computed_answer(const Asked::Part& part, const kda::Variant& variant,
                                     const kda::RunOptions& options) {
  return keep(part, plan::computed_answer(variant, problem(part).outline, options));
}

std::size_t Builder::reproduction(const Asked::Part& part, std::size_t recorded, const kda::Variant& variant,
                                  const kda::RunOptions& options) {
  Answer answer = plan::computed_answer(variant, problem(part).outline, options);
  if (hypotheses::has_open_launch(variant, options)) answer.launched_as = recorded;
  return keep(part, std::move(answer));
}

std::vector<std::size_t> Builder::computed_answers(const Asked& asked, const Asked::Part& part) {
  std::vector<std::size_t> list;
  for (Answer& answer : plan::computed_answers(*asked.request, problem(part).outline, part.dtypes))
    list.push_back(keep(part, std::move(answer)));
  return list;
}

std::vector<std::size_t> Builder::recorded_answers(const Asked& asked, const Asked::Part& part) {
  std::vector<std::size_t> list;
  for (const fixture::ExpectedGroup& group : asked.source->expected()) {
    Answer answer;
    answer.origin = Answer::Origin::recorded;
    answer.name = group.name;
    answer.dtype = group.tensor("o") != nullptr ? *group.tensor("o")->dtype : asked.source->outline().dtype();
    if (!part.as_stored)
      answer.why_not =
          fmt::format("{}: expected/{} answers the stored inputs", problem(part).remark(), group.name);
    list.push_back(keep(part, std::move(answer)));
  }
  return list;
}

std::optional<std::size_t> Builder::external_answer(const Asked& asked, const Asked::Part& part) {
  if (!asked.request->external) return std::nullopt;
  Answer answer;
  answer.origin = Answer::Origin::external;
  answer.name = asked.request->external->name;
  answer.program = asked.request->external;
  answer.dtype = problem(part).outline.dtype();
  return keep(part, std::move(answer));
}

Case& Builder::add_case(const Asked& asked, const Asked::Part& part, Case item) {
  item.asked = asked.request;
  if (item.answer) item.who = problem(part).answers[*item.answer].name;
  return problem(part).cases.emplace_back(std::move(item));
}

Case& Builder::add_verdict(const Asked& asked, const Asked::Part& part, Case item) {
  Case& added = add_case(asked, part, std::move(item));
  if (!added.skip.empty() || !added.answer) return added;
  const Answer& answer = problem(part).answers[*added.answer];
  const Judging& judging = asked.request->judging;
  const std::string why_no_bits = plan::why_no_bits(added, problem(part));
  Names compared;
  for (const std::string& tensor : added.tensors) {
    const fixture::ExpectedGroup* const group =
        answer.origin == Answer::Origin::recorded ? asked.source->expected_named(answer.name) : nullptr;
    const DType storage = group != nullptr ? *group->tensor(tensor)->dtype
                                           : kda::dtype_of(tensor, problem(part).outline, answer.dtype);
    if (answer.is_computed())
      for (const judge::LimitLayer& layer : judging.limits) {
        try {
          judge::refuse_limits_finer_than_storage(layer.requests, judging.atol.value_or(0),
                                                  judging.rtol.value_or(0), storage);
        } catch (const Error& error) {
          throw layer.source == command_line ? error : error.in(layer.source);
        }
      }
    std::vector<judge::LimitLayer> limits =
        limits_of(asked, added, numeric::name_of(answer.dtype), tensor, storage, added.notes);
    if (!why_no_bits.empty() && judge::ask_for_bits(limits)) continue;
    compared.push_back(tensor);
    added.limits.push_back(std::move(limits));
  }
  if (compared.empty() && !added.tensors.empty()) {
    added.skip = why_no_bits;
  } else if (compared.size() < added.tensors.size()) {
    std::erase_if(added.tensors, [&](const std::string& name) { return has(compared, name); });
    add_note(part, fmt::format("{}: not compared: {}", join(added.tensors), why_no_bits));
    added.tensors = std::move(compared);
  }
  for (const std::string& note : added.notes) add_note(part, note);
  return added;
}

Case& Builder::add_stages(const Asked& asked, const Asked::Part& part, Case item) {
  Case& added = add_case(asked, part, std::move(item));
  const DType dtype = problem(part).answers[*added.answer].dtype;
  for (const std::string& stage : added.tensors)
    added.limits.push_back(limits_of(asked, added, numeric::name_of(dtype), stage, kda::state_dtype(dtype),
                                     added.notes, "twins"));
  for (const std::string& note : added.notes) add_note(part, note);
  return added;
}

std::vector<judge::LimitLayer> Builder::limits_of(const Asked& asked, const Case& item,
                                                  std::string_view dtype, std::string_view tensor,
                                                  DType storage, Names& notes, std::string_view only) {
  const auto is_meant = [&](const std::vector<judge::LimitRequest>& requests) {
    return only.empty() ||
           std::ranges::any_of(requests, [&](const auto& limit) { return limit.metric == only; });
  };
  std::vector<judge::LimitLayer> layers;
  if (!asked.request->tolerance.empty())
    for (const judge::ToleranceRule* const rule :
         tolerances_.at(asked.request->tolerance)
             ->rules_for({asked.source->name(), item.who, dtype, item.reference.name, tensor, storage})) {
      if (!is_meant(rule->limits)) continue;
      layers.push_back({rule->place, rule->limits});
      const std::string note = fmt::format("{}: {}", rule->place, rule->reason);
      if (!has(notes, note)) notes.push_back(note);
    }
  const Judging& judging = asked.request->judging;
  std::ranges::copy_if(judging.limits, std::back_inserter(layers),
                       [&](const judge::LimitLayer& layer) { return is_meant(layer.requests); });
  if (only.empty() && (judging.atol || judging.rtol))
    layers.push_back({judging.allclose_source, {{"allclose", 0, false, false}}});
  return layers;
}

void Builder::fail(const Asked& asked, const Error& error) {
  plan_.failures.push_back({error.what(), exit_code(error.kind()), asked.source->target().name});
}

void Builder::fail_to_judge(const Asked& asked, const std::string& what, const std::string& hint) {
  const std::string& path = asked.source->target().name;
  plan_.failures.push_back({fmt::format("{} ({}); hint: {}", what, path, hint), 1, path});
}

void Builder::add_note(const Asked::Part& part, std::string note) {
  Names& notes = problem(part).notes;
  if (!has(notes, note)) notes.push_back(std::move(note));
}

void Builder::warn(const Asked& asked, const std::string& text) {
  const std::string line = fmt::format("{} ({})", text, asked.source->target().path);
  if (!has(plan_.warnings, line)) plan_.warnings.push_back(line);
}

}  // namespace kda_check::plan

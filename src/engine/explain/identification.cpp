// `explain`: which computation gives a recorded output, or its gradients.
#include "engine/explain/identification.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/names.hpp"
#include "engine/findings.hpp"
#include "kda/arithmetic/presets.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using hypotheses::Identification;
using hypotheses::Identity;
using report::Show;
using report::Value;

Value number_of(std::size_t count) { return static_cast<std::int64_t>(count); }

std::string_view text_of(Identity identity) {
  switch (identity) {
    case Identity::identified:
      return "identified";
    case Identity::stranger:
      return "stranger";
    case Identity::too_few_errors:
      return "too_few_errors";
    case Identity::no_errors:
      break;
  }
  return "no_errors";
}

/// The first of a list, and how many more.
std::string some_of(const std::vector<std::string>& list) {
  constexpr std::size_t shown = 5;
  const std::vector<std::string> first(
      list.begin(), list.begin() + static_cast<std::ptrdiff_t>(std::min(shown, list.size())));
  return join(first, ", ") + (list.size() > shown ? fmt::format(" and {} more", list.size() - shown) : "");
}

std::string explained_reason(const Identification& found, const kda::Problem& problem) {
  if (found.end == Identity::no_errors) return "no error at all: nothing tells computations apart";
  if (found.hypothesis.variant == nullptr)
    return "no known computation can answer this problem, or it is zero everywhere";
  const std::string what = hypotheses::text_of(found.hypothesis, problem);
  if (found.end == Identity::too_few_errors)
    return fmt::format("too few errors to identify (n = {}): the nearest known is {}", found.errors, what);
  const double again = found.again.value_or(found.explained), least = std::min(found.explained, again);
  const std::string further =
      found.again ? fmt::format(" ({} in other heads, further in)", percent(again)) : "";
  if (found.end == Identity::stranger)
    return fmt::format("computes unlike any known kernel: the nearest, {}, explains {} of the error{}", what,
                       percent(found.explained), further);
  std::string text = found.differing == 0 && again == 1
                         ? fmt::format("every bit is {}", what)
                         : fmt::format("computes as {}: that explains {} of the error{}", what,
                                       percent(found.explained), further);
  if (least < 0.9)
    text += fmt::format(
        "; something else is wrong besides: the computation explains {} of all blocks of 16 elements",
        percent(found.blocks));
  if (!found.cannot_be_told_apart.empty())
    text += fmt::format("; {} cannot be told apart from it here", some_of(found.cannot_be_told_apart));
  if (!found.hypothesis.preset.empty())
    if (const auto source = kda::preset_named(found.hypothesis.preset).source; !source.empty())
      text += fmt::format("; {} as in {}", found.hypothesis.preset, source);
  return text;
}

report::Table shares_table(const Identification& found) {
  report::Table table;
  table.key = "shares";
  table.title = "what its settings cost";
  table.columns = {{"setting", {}, Show::code},
                   {"share", "of the error", Show::share},
                   {"better", "times better without", Show::figure}};
  for (const hypotheses::Share& one : found.shares)
    table.rows.push_back({one.setting, one.share, one.better});
  return table;
}

report::Table advice_table(const Identification& found) {
  report::Table table;
  table.key = "advice";
  table.title = "what to make finer first";
  table.columns = {{"setting", {}, Show::code},
                   {"better", "times better without", Show::figure},
                   {"together", "and without those above", Show::figure}};
  for (const hypotheses::Advice& one : found.advice)
    table.rows.push_back({one.setting, one.better, one.together});
  return table;
}

void identify_case(Context& context, const plan::Case& item, report::Section& section) {
  Identification forward;
  for (const kda::Pass pass : kda::every_pass) {
    const std::vector<std::string> names = kda::tensors_of(pass);
    if (std::ranges::find_first_of(item.tensors, names) != item.tensors.end())
      forward = identify_pass(context, item, *item.answer, pass, known_computation(forward), section);
  }
}

}  // namespace

std::string percent(double share) {
  const std::string text = fmt::format("{:.1f} %", 100 * share);
  return text == "100.0 %" && share < 1 ? fmt::format("{:.3f} %", 100 * share) : text;
}

const hypotheses::Hypothesis* known_computation(const Identification& found) {
  return found.end == Identity::identified ? &found.hypothesis : nullptr;
}

Identification identify_pass(Context& context, const plan::Case& item, std::size_t answer, kda::Pass pass,
                             const hypotheses::Hypothesis* forward, report::Section& section) {
  const plan::Answer& who = context.plan().answers[answer];
  const kda::Problem& problem = context.problem();
  if (who.dtype == numeric::DType::fp64)
    throw NoAnswer{judge::Verdict::skipped,
                   "in fp64 nothing is rounded but sums, in more orders than have names"};
  const Answered& answered = context.answer(answer, pass);
  const hypotheses::RecordedOutput recorded(problem, pass, answered.tensors, who.dtype);
  if (recorded.tensors().empty())
    throw NoAnswer{judge::Verdict::skipped, "no variant answers in the element types that are recorded"};
  hypotheses::SearchSettings settings;
  settings.threads = context.resources().threads;
  settings.forward = forward;
  settings.shares = item.asked->says("shares"), settings.advise = item.asked->advise;
  settings.progress = [&](const std::string& what) {
    context.progress(fmt::format("{}: {}", who.name, what));
  };
  Identification found = hypotheses::identify(recorded, who.dtype, settings);
  const bool has_one = found.hypothesis.variant != nullptr;
  report::Entry& entry = section.add_fields(
      {{{"output", {}}, who.name},
       {{"pass", {}, Show::data}, std::string(kda::name_of(pass))},
       {{"dtype", {}, Show::data}, std::string(numeric::name_of(who.dtype))},
       {{"identity", {}, Show::data}, std::string(text_of(found.end))},
       {{"variant", {}, Show::data}, std::string(has_one ? found.hypothesis.variant->name : "")},
       {{"preset", {}, Show::data}, found.hypothesis.preset},
       {{"chunk_size", {}, Show::data}, number_of(has_one ? found.hypothesis.options.chunk_size : 0)},
       {{"arithmetic", {}, Show::data},
        has_one ? hypotheses::arithmetic_words(found.hypothesis, problem) : std::string()},
       {{"settings", {}, Show::data}, found.hypothesis.change},
       {{"explained", {}, Show::data}, found.explained},
       {{"explained_again", {}, Show::data}, found.again ? Value(*found.again) : Value()},
       {{"blocks", {}, Show::data}, found.blocks},
       {{"errors", {}, Show::data}, number_of(found.errors)},
       {{"relative_error", {}, Show::data}, found.relative_error},
       {{"differing", {}, Show::data}, number_of(found.differing)},
       {{"elements", {}, Show::data}, number_of(found.elements)},
       {{"tried", {}, Show::data}, number_of(found.tried)},
       {{"cannot_be_told_apart", {}, Show::data}, found.cannot_be_told_apart},
       {{"repro", {}, Show::data}, item.repro}});
  entry.title = fmt::format("{}{}, {}", who.name, pass == kda::Pass::forward ? "" : ", gradients",
                            numeric::name_of(who.dtype));
  entry.verdict = found.end == Identity::stranger ? judge::Verdict::inconclusive : judge::Verdict::pass;
  entry.reason = explained_reason(found, problem);
  if (found.not_finite > 0) {
    entry.verdict = judge::Verdict::fail;
    entry.reason = fmt::format("{} not finite, where the truth is; of the others: {}",
                               report::counted(found.not_finite, "element"), entry.reason);
  }
  entry.tables = {shares_table(found), advice_table(found)};
  return found;
}

void identify_outputs(Context& context, Findings& findings) {
  keep_finished(findings, section_of(context, "between"), [&](report::Section& between) {
    keep_finished(findings, section_of(context, "explained"), [&](report::Section& section) {
      for (const plan::Case& item : context.plan().cases) {
        if (item.question != plan::Question::identity) continue;
        try {
          if (item.reference.kind == plan::Reference::Kind::answer)
            compare_outputs(context, item, section, between);
          else
            identify_case(context, item, section);
        } catch (const NoAnswer& none) {
          findings.notes.push_back(fmt::format("skipped: {}: {}", item.who, none.reason));
        }
        context.release();
      }
    });
  });
}

}  // namespace kda_check::engine

// `explain --between`: the settings that make the difference of two outputs.
#include "hypotheses/between.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/names.hpp"
#include "engine/explain/identification.hpp"
#include "plan/replay.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using hypotheses::Hypothesis;
using hypotheses::Identification;
using hypotheses::Identity;
using report::Show;

/// One of the two, pass by pass. What computes a variant is known.
class ComparedOutput {
 public:
  ComparedOutput(Context& context, std::string name, std::size_t index)
      : context_(context), name_(std::move(name)), index_(index) {}

  const std::string& name() const { return name_; }
  bool is_computed() const { return who().is_computed(); }
  numeric::DType dtype() const { return who().dtype; }
  bool is_exact() const { return !computation_; }
  const std::optional<Hypothesis>& computation() const { return computation_; }
  const Hypothesis* forward() const { return forward_ ? &*forward_ : nullptr; }

  void identify(const plan::Case& item, kda::Pass pass, report::Section& section) {
    forward_.reset(), doubt_.clear();
    if (is_computed()) known_forward_ = as_computed(kda::Pass::forward);
    if (pass == kda::Pass::backward) forward_ = known_forward_;
    if (is_computed()) {
      computation_ = as_computed(pass);
      return;
    }
    computation_.reset();
    if (dtype() == numeric::DType::fp64) return;
    const Identification found = identify_pass(context_, item, index_, pass, forward(), section);
    if (found.hypothesis.variant != nullptr) computation_ = found.hypothesis;
    if (pass == kda::Pass::forward && known_computation(found) != nullptr) known_forward_ = found.hypothesis;
    if (found.end == Identity::stranger)
      doubt_ = fmt::format("{} computes unlike any known kernel: the nearest explains {} of its error", name_,
                           percent(std::min(found.explained, found.again.value_or(found.explained))));
    if (found.end == Identity::too_few_errors)
      doubt_ = fmt::format("{} has too few errors to be identified (n = {})", name_, found.errors);
  }
  /// It makes no error that could be explained.
  void take_for_exact(const Hypothesis& like) { computation_ = hypotheses::exact_like(like, dtype()); }
  /// Empty: it is identified.
  const std::string& doubt() const { return doubt_; }

  const kda::Tensors& tensors(kda::Pass pass) const { return context_.answer(index_, pass).tensors; }

 private:
  const plan::Answer& who() const { return context_.plan().answers[index_]; }

  Hypothesis as_computed(kda::Pass pass) const {
    const plan::Answer& launched = context_.with_launch(index_, pass);
    Hypothesis one;
    one.variant = &plan::on_cpu(*launched.variant);
    one.options = context_.options_of(launched);
    one.pass = pass;
    return one;
  }

  Context& context_;
  const std::string name_;
  const std::size_t index_;
  std::optional<Hypothesis> computation_{}, forward_{}, known_forward_{};
  std::string doubt_{};
};

std::string share_text(double share) { return report::value_text(share, Show::share); }

/// "bf16@v_new makes 61.0 % of the difference, decay=pair 30.2 %; 1.2 % is left"
std::string between_reason(const hypotheses::Between& found, const ComparedOutput& to,
                           const ComparedOutput& from) {
  constexpr std::size_t named = 3;
  constexpr double least = 0.01, nothing = 5e-4;
  std::vector<const hypotheses::Step*> steps;
  for (const hypotheses::Step& step : found.steps)
    if (step.share >= least) steps.push_back(&step);
  std::ranges::stable_sort(steps, std::ranges::greater{}, &hypotheses::Step::share);
  steps.resize(std::min(named, steps.size()));
  std::string text;
  for (const hypotheses::Step* const step : steps)
    text += text.empty()
                ? fmt::format("{} makes {} of the difference", step->setting, share_text(step->share))
                : fmt::format(", {} {}", step->setting, share_text(step->share));
  if (text.empty()) text = found.differing == 0 ? "no bit differs" : "no setting makes the difference";
  if (const double left = found.left_of_a + found.left_of_b; std::abs(left) >= nothing)
    text += fmt::format("; {} is left", share_text(left));
  for (const std::string& doubt : {to.doubt(), from.doubt()})
    if (!doubt.empty()) text += "; " + doubt;
  return text;
}

report::Table steps_table(const hypotheses::Between& found, const ComparedOutput& to,
                          const ComparedOutput& from) {
  report::Table table;
  table.key = "steps";
  table.columns = {{"setting", {}, Show::code}, {"instead", "instead of"}, {"share", {}, Show::share}};
  if (found.left_of_b != 0)
    table.rows.push_back({fmt::format("left of {}", from.name()), std::string(), found.left_of_b});
  for (const hypotheses::Step& step : found.steps)
    table.rows.push_back({step.setting, step.instead, step.share});
  if (found.left_of_a != 0)
    table.rows.push_back({fmt::format("left of {}", to.name()), std::string(), found.left_of_a});
  return table;
}

report::Table of_tensors_table(const hypotheses::Between& found) {
  report::Table table;
  table.key = "of_tensors";
  table.columns = {{"tensor", {}}, {"setting", {}, Show::code}, {"share", {}, Show::share}};
  table.is_data = true;
  for (const hypotheses::Step& step : found.steps)
    for (const auto& [name, share] : step.of_tensors) table.rows.push_back({name, step.setting, share});
  return table;
}

void compare_pass(Context& context, const plan::Case& item, kda::Pass pass, ComparedOutput& to,
                  ComparedOutput& from, report::Section& section) {
  if (to.is_exact() && from.is_exact())
    throw NoAnswer{judge::Verdict::skipped,
                   fmt::format("neither {} nor {} makes an error", to.name(), from.name())};
  if (to.is_exact()) to.take_for_exact(*from.computation());
  if (from.is_exact()) from.take_for_exact(*to.computation());
  hypotheses::RecordedOutput a(context.problem(), pass, to.tensors(pass), to.dtype()),
      b(context.problem(), pass, from.tensors(pass), from.dtype());
  a.keep_those_of(b), b.keep_those_of(a);
  if (a.tensors().empty())
    throw NoAnswer{judge::Verdict::skipped,
                   fmt::format("nothing of {} can be compared with {}", to.name(), from.name())};
  context.progress(fmt::format("{} to {}", from.name(), to.name()));
  const hypotheses::Between found =
      hypotheses::between({&a, &*to.computation(), to.forward()}, {&b, &*from.computation(), from.forward()},
                          context.resources().threads);
  report::Entry& entry =
      section.add_fields({{{"from", {}}, from.name()},
                          {{"to", {}}, to.name()},
                          {{"pass", {}, Show::data}, std::string(kda::name_of(pass))},
                          {{"difference", {}, Show::data}, found.difference},
                          {{"left", {}, Show::data}, found.left_of_a + found.left_of_b},
                          {{"differing", {}, Show::data}, static_cast<std::int64_t>(found.differing)},
                          {{"elements", {}, Show::data}, static_cast<std::int64_t>(found.elements)},
                          {{"without_effect", {}, Show::data}, found.without_effect},
                          {{"repro", {}, Show::data}, item.repro}});
  entry.title =
      fmt::format("from {} to {}{}", from.name(), to.name(), pass == kda::Pass::forward ? "" : ", gradients");
  entry.verdict =
      to.doubt().empty() && from.doubt().empty() ? judge::Verdict::pass : judge::Verdict::inconclusive;
  entry.reason = between_reason(found, to, from);
  entry.tables = {steps_table(found, to, from), of_tensors_table(found)};
}

}  // namespace

void compare_outputs(Context& context, const plan::Case& item, report::Section& explained,
                     report::Section& between) {
  ComparedOutput to(context, item.who, *item.answer),
      from(context, item.reference.name, item.reference.answer);
  for (const kda::Pass pass : kda::every_pass) {
    const std::vector<std::string> names = kda::tensors_of(pass);
    if (std::ranges::find_first_of(item.tensors, names) == item.tensors.end()) continue;
    for (ComparedOutput* const side : {&to, &from}) side->identify(item, pass, explained);
    compare_pass(context, item, pass, to, from, between);
  }
}

}  // namespace kda_check::engine

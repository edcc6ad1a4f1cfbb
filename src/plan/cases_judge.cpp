// The cases of `run`: every answer against the oracle, against recorded answers, against its replay, under
// the laws, stage by stage.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/names.hpp"
#include "explain/invariants/invariants.hpp"
#include "kda/problem/gradients.hpp"
#include "plan/builder.hpp"
#include "plan/replay.hpp"

namespace kda_check::plan {

namespace {

/// One target, or one rounding of it.
class Judged {
 public:
  Judged(Builder& builder, const Asked& asked, const Asked::Part& part)
      : builder_(builder),
        asked_(asked),
        part_(part),
        request_(*asked.request),
        passes_(tensors_of(request_, known_tensors(Task::judge))),
        computed_(builder.computed_answers(asked, part)),
        recorded_(builder.recorded_answers(asked, part)),
        external_(builder.external_answer(asked, part)) {}

  void add() {
    report_missing();
    for (const std::size_t index : computed_)
      if (!answer(index).why_not.empty()) add_skip(index, {}, answer(index).why_not);
    for (const PassTensors& pass : passes_) add_pass(pass);
    for (const PassTensors& pass : passes_) add_laws(pass);
    if (request_.stages) add_stages();
    note_gradients();
    if (part_.as_stored) note_what_is_left();
  }

 private:
  const Answer& answer(std::size_t index) const { return builder_.problem(part_).answers[index]; }
  const kda::Outline& outline() const { return builder_.problem(part_).outline; }
  const fixture::ExpectedGroup& group(std::size_t index) const {
    return *asked_.source->expected_named(answer(index).name);
  }

  const kda::Dimensions& dimensions() const { return asked_.source->outline().dimensions; }
  bool answers(std::size_t index, kda::Pass pass) const {
    const Answer& who = answer(index);
    if (!who.why_not.empty()) return false;
    return !who.is_computed() ||
           why_no_pass(pass, *who.variant, who.options.arithmetic, dimensions()).empty();
  }

  /// Those of `wanted` that an answer has.
  Names held(std::size_t index, const PassTensors& wanted) const {
    Names names = wanted.tensors;
    const Names here = kda::tensors_of(wanted.pass, outline());
    std::erase_if(names, [&](const std::string& name) { return !has(here, name); });
    if (answer(index).origin == Answer::Origin::recorded)
      std::erase_if(names, [&](const std::string& name) { return group(index).tensor(name) == nullptr; });
    return names;
  }

  void add_pass(const PassTensors& wanted) {
    if (wanted.pass == kda::Pass::backward && !outline().has_loss()) return;
    std::vector<std::size_t> judged;  // of this pass, those of users first
    for (const std::vector<std::size_t>& list : {recorded_, external(), computed_})
      for (const std::size_t index : list)
        if (answers(index, wanted.pass)) judged.push_back(index);
    if (wants_oracle(request_)) {
      for (const std::size_t index : judged)
        if (answer(index).origin != Answer::Origin::recorded || wants_recorded(request_, answer(index).name))
          add_verdict(index, {Reference::Kind::oracle, 0, "oracle"}, wanted);
      const bool never_as_stored = std::ranges::none_of(asked_.parts, &Asked::Part::as_stored);
      for (const std::size_t index : recorded_)
        if (never_as_stored && wanted.pass == kda::Pass::forward &&
            wants_recorded(request_, answer(index).name))
          add_skip(index, "oracle", answer(index).why_not);
    }
    for (const std::size_t expected : recorded_) {
      const std::string& name = answer(expected).name;
      if (!wants_reference(request_, name)) continue;
      for (const std::size_t index : judged)
        if (answer(index).origin != Answer::Origin::recorded)
          add_verdict(index, {Reference::Kind::answer, expected, name}, wanted);
      if (!part_.as_stored && wanted.pass == kda::Pass::forward)
        for (const std::size_t index : computed_)
          if (answer(index).why_not.empty()) add_skip(index, name, answer(expected).why_not);
    }
    if (wants_replay(request_))
      for (const std::size_t index : computed_)
        if (answers(index, wanted.pass) && !answer(index).variant->replay.empty()) add_replay(index, wanted);
  }

  std::vector<std::size_t> external() const {
    return external_ ? std::vector<std::size_t>{*external_} : std::vector<std::size_t>{};
  }

  void add_verdict(std::size_t index, Reference reference, const PassTensors& wanted) {
    Case item;
    item.answer = index, item.reference = reference, item.pass = wanted.pass;
    item.tensors = held(index, wanted);
    if (reference.kind == Reference::Kind::answer) {
      if (!answers(reference.answer, wanted.pass)) return;
      const Names theirs = held(reference.answer, wanted);
      std::erase_if(item.tensors, [&](const std::string& name) { return !has(theirs, name); });
    }
    // A group of gradients alone says nothing about the forward pass, and the other way round.
    if (item.tensors.empty()) {
      const bool is_of_other =
          held(index, wanted).empty() &&
          std::ranges::any_of(passes_, [&](const auto& pass) { return !held(index, pass).empty(); });
      if (wanted.pass == kda::Pass::backward || is_of_other) return;
      item.skip = "holds none of the tensors compared";
    }
    builder_.add_verdict(asked_, part_, std::move(item));
  }

  void add_replay(std::size_t index, const PassTensors& wanted) {
    Case item;
    item.answer = index, item.reference = {Reference::Kind::replay, 0, "replay"}, item.pass = wanted.pass;
    item.tensors = held(index, wanted);
    item.skip = why_no_replay(*answer(index).variant, outline(), answer(index).options);
    builder_.add_verdict(asked_, part_, std::move(item));
  }

  void add_skip(std::size_t index, const std::string& against, const std::string& reason) {
    Case item;
    item.answer = index, item.skip = reason;
    item.reference = {against.empty() ? Reference::Kind::none : Reference::Kind::oracle, 0, against};
    builder_.add_case(asked_, part_, std::move(item));
  }

  /// A file without a group that is asked for is not passed over in silence.
  void report_missing() {
    if (!part_.as_stored) return;
    for (const std::string& name : missing_groups(request_, *asked_.source)) {
      Case item;
      item.who = name, item.skip = fmt::format("the file has no group expected/{}", name);
      item.reference = {Reference::Kind::none, 0, {}};
      builder_.add_case(asked_, part_, std::move(item));
    }
  }

  void add_laws(const PassTensors& wanted) {
    if (wanted.pass == kda::Pass::backward && !outline().has_loss()) return;
    std::vector<std::size_t> subjects = computed_;
    if (external_) subjects.push_back(*external_);
    for (const std::size_t index : subjects)
      if (answers(index, wanted.pass))
        for (const explain::Invariant& law : explain::invariants()) {
          const bool is_idle = law.of_checkpoints && outline().dimensions.checkpoints == 0;
          if (!wants_law(request_, law) || (is_idle && request_.invariants->empty())) continue;
          Case item;
          item.answer = index, item.pass = wanted.pass, item.tensors = held(index, wanted);
          item.reference = {Reference::Kind::law, 0, fmt::format("invariant:{}", law.name)};
          builder_.add_verdict(asked_, part_, std::move(item));
        }
  }

  void add_stages() {
    const bool backward = outline().has_loss() && request_.selection.pass != kda::Pass::forward &&
                          request_.narrowing.pass != kda::Pass::forward;
    const auto add = [&](std::size_t index) {
      Case item;
      item.question = Question::stages, item.answer = index;
      item.reference = {Reference::Kind::oracle, 0, "oracle"};
      item.pass = backward ? kda::Pass::backward : kda::Pass::forward;
      for (const kda::StageRow& row : kda::stages(backward ? kda::Passes::both : kda::Passes::forward))
        item.tensors.emplace_back(row.name);
      builder_.add_stages(asked_, part_, std::move(item));
    };
    for (const std::size_t index : computed_)
      if (const Answer& who = answer(index); who.variant->axes.chunk && who.why_not.empty()) {
        if (const std::string_view reason = why_no_stages(who.options.arithmetic); reason.empty())
          add(index);
        else
          builder_.add_note(part_, fmt::format("stages of {}: not compared: {}", who.name, reason));
      }
    if (outline().dimensions.strength == kda::Strength::value) return;  // there is no chunk form
    const std::size_t of_file = outline().chunk_size();
    if (!part_.as_stored || request_.chunk_size.value_or(of_file) != of_file) return;
    for (const std::size_t index : recorded_)
      if (!group(index).stages.empty() && wants_recorded(request_, answer(index).name)) add(index);
  }

  bool tensors_named() const { return request_.selection.tensors || request_.narrowing.tensors; }

  /// Why gradients are not compared, where that may surprise.
  void note_gradients() {
    const auto backward = std::ranges::find(passes_, kda::Pass::backward, &PassTensors::pass);
    if (backward == passes_.end()) return;
    if (!outline().has_loss()) {
      if (tensors_named() || request_.selection.pass)
        builder_.add_note(part_, "gradients: not compared: without do or dht there is no loss");
      return;
    }
    Names without, not_there;
    for (const std::size_t index : computed_)
      if (const Answer& who = answer(index);
          !why_no_pass(kda::Pass::backward, *who.variant, who.options.arithmetic, dimensions()).empty())
        without.push_back(who.name);
    if (!without.empty())
      builder_.add_note(
          part_, fmt::format("gradients: no backward pass in {}", join(without_repeats(std::move(without)))));
    const Names here = kda::tensors_of(kda::Pass::backward, outline());
    for (const std::string& name : backward->tensors)
      if (tensors_named() && !has(here, name)) not_there.push_back(name);
    if (!not_there.empty())
      builder_.add_note(part_, fmt::format("gradients: this problem has no {}", join(not_there)));
    for (const std::size_t index : recorded_)
      for (const kda::GradientRow& row : kda::gradients())
        if (part_.as_stored && group(index).tensor(row.name) != nullptr &&
            !kda::has_gradient(outline(), row.gradient))
          builder_.warn(asked_,
                        fmt::format("expected/{}/{} is not compared: the problem has no {}, or does not "
                                    "use it",
                                    answer(index).name, row.name, row.of));
  }

  void note_what_is_left() {
    Names compared;
    for (const PassTensors& pass : passes_)
      if (pass.pass == kda::Pass::forward || outline().has_loss())
        compared.insert(compared.end(), pass.tensors.begin(), pass.tensors.end());
    const std::size_t of_file = outline().chunk_size();
    for (const fixture::ExpectedGroup& group : asked_.source->expected()) {
      if (!wants_recorded(request_, group.name) && !wants_reference(request_, group.name)) continue;
      Names left;
      for (const fixture::DatasetInfo& info : group.tensors)
        if (const std::string_view name = fixture::leaf(info.path);
            name == "ring_u" || (!kda::is_beside_pool(name) && !has(compared, kda::in_ordinary_form(name))))
          left.emplace_back(name == "ring_u" ? "what the call writes to ring_u" : name);
      if (!group.stages.empty() && !request_.stages) left.emplace_back("stages");
      if (!group.stages.empty() && request_.stages && request_.chunk_size.value_or(of_file) != of_file)
        left.push_back(fmt::format("stages (chunks of {}, not {})", of_file, *request_.chunk_size));
      if (!left.empty())
        builder_.add_note(part_, fmt::format("expected/{}: not compared: {}", group.name, join(left, " ")));
    }
  }

  Builder& builder_;
  const Asked& asked_;
  const Asked::Part& part_;
  const Request& request_;
  const std::vector<PassTensors> passes_;
  const std::vector<std::size_t> computed_, recorded_;
  const std::optional<std::size_t> external_;
};

/// The options by which nothing of a recorded answer is judged, and what they do; empty where it has nothing
/// that others would compare.
std::string leaving_out(const Asked& asked, const fixture::ExpectedGroup& group) {
  const Selection& words = asked.request->selection;
  if (!wants_oracle(*asked.request))
    return fmt::format("--against {} compares variants and programs, no recorded outputs",
                       join(*words.against, ","));
  if (std::ranges::none_of(asked.parts, &Asked::Part::as_stored))
    return fmt::format("--dtype {} rounds the inputs that it answers", join(*words.dtypes, ","));
  const kda::Outline& outline = asked.source->outline();
  const bool has_any = std::ranges::any_of(kda::every_pass, [&](kda::Pass pass) {
    return (pass == kda::Pass::forward || outline.has_loss()) &&
           std::ranges::any_of(kda::tensors_of(pass, outline),
                               [&](const std::string& name) { return group.tensor(name) != nullptr; });
  });
  if (!has_any) return {};
  return fmt::format("{} leaves out all it has", words_for_tensors(words));
}

/// Where recorded answers are to be judged and none is, a pass of ours would be taken for theirs: who means
/// that says --recorded. Of those that are named each counts. What a line of a suite leaves out it means.
void fail_for_what_is_left_out(Builder& builder, const Asked& asked) {
  const Request& request = *asked.request;
  if (request.place != command_line) return;
  if (!wants_oracle(request)) {
    const bool has_cases = std::ranges::any_of(
        asked.parts, [&](const Asked::Part& part) { return !builder.problem(part).cases.empty(); });
    if (has_cases || request.selection.against.value_or(Names{}).empty()) return;
  }
  const auto is_judged = [&](const std::string& name) {
    return std::ranges::any_of(asked.parts, [&](const Asked::Part& part) {
      const Problem& problem = builder.problem(part);
      return std::ranges::any_of(problem.cases, [&](const Case& item) {
        return item.asked == asked.request && item.skip.empty() && item.who == name && item.answer &&
               problem.answers[*item.answer].origin == Answer::Origin::recorded;
      });
    });
  };
  std::map<std::string, Names> left_out;  // by what leaves them out
  for (const fixture::ExpectedGroup& group : asked.source->expected()) {
    if (!wants_recorded(request, group.name)) continue;
    if (!is_judged(group.name))
      left_out[leaving_out(asked, group)].push_back("expected/" + group.name);
    else if (!request.selection.recorded)
      return;
  }
  left_out.erase("");
  for (const auto& [why, groups] : left_out)
    builder.fail_to_judge(asked, fmt::format("nothing of {} is judged: {}", join(groups), why),
                          wants_oracle(request)
                              ? "if that is meant: --recorded none, or the names of those to judge"
                              : "kda-check diff FILE:A FILE:B compares two recorded outputs");
}

}  // namespace

void add_verdicts(Builder& builder, const Asked& asked) {
  for (const Asked::Part& part : asked.parts) Judged(builder, asked, part).add();
  fail_for_what_is_left_out(builder, asked);
}

}  // namespace kda_check::plan

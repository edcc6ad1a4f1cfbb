// The cases of `explain`, section by section.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "plan/builder.hpp"
#include "plan/replay.hpp"
#include "plan/reproduction.hpp"

namespace kda_check::plan {

namespace {

Names recorded_tensors(const fixture::ExpectedGroup& group, const kda::Outline& outline) {
  Names tensors;
  for (const kda::Pass pass : kda::every_pass)
    for (const std::string& tensor : kda::tensors_of(pass, outline))
      if (group.tensor(tensor) != nullptr) tensors.push_back(tensor);
  return tensors;
}

/// The one case of `explain --between`.
class Between {
 public:
  Between(Builder& builder, const Asked& asked, const Asked::Part& part)
      : builder_(builder),
        asked_(asked),
        part_(part),
        request_(*asked.request),
        recorded_(builder.recorded_answers(asked, part)) {}

  void add() {
    const std::string &to = request_.between[0], &from = request_.between[1];
    const std::optional<std::size_t> held[] = {held_of(to), held_of(from)};
    for (const std::string& name : request_.between)
      if (!is_recorded(name) && !is_variant(name))
        return builder_.add_note(part_, fmt::format("skipped: there is no expected/{}", name));
    const Side got = side_of(to, held[1]), reference = side_of(from, held[0]);
    Case item;
    item.question = Question::identity, item.answer = got.answer;
    item.reference = {Reference::Kind::answer, reference.answer, from};
    item.tensors = got.tensors;
    std::erase_if(item.tensors, [&](const std::string& name) { return !has(reference.tensors, name); });
    if (item.tensors.empty())
      builder_.add_note(part_, fmt::format("skipped: {} and {} have no tensor in common", to, from));
    else
      builder_.add_case(asked_, part_, std::move(item)).who = to;
  }

 private:
  struct Side {
    std::size_t answer;
    Names tensors;
  };

  const kda::Outline& outline() const { return builder_.problem(part_).outline; }
  bool is_recorded(const std::string& name) const { return asked_.source->expected_named(name) != nullptr; }
  bool is_variant(const std::string& name) const {
    return std::ranges::find(request_.registry, name.substr(0, name.find('+')), &kda::Variant::name) !=
           request_.registry.end();
  }
  /// Of recorded answers the one of that name.
  std::optional<std::size_t> held_of(const std::string& name) const {
    for (const std::size_t index : recorded_)
      if (builder_.problem(part_).answers[index].name == name) return index;
    return std::nullopt;
  }

  /// A recorded answer of that name comes before a variant. `other`: the recorded one at the other side,
  /// whose launch a variant has where none is named.
  Side side_of(const std::string& name, std::optional<std::size_t> other) {
    if (const std::optional<std::size_t> index = held_of(name))
      return {*index, recorded_tensors(*asked_.source->expected_named(name), outline())};
    const Reproduction known = reproduction_named(name, request_.registry);
    const kda::RunOptions options =
        run_options(*known.variant, outline(), dtypes_of(request_, outline()).front(), known.arithmetic,
                    outline().chunk_size());
    std::string reason = why_not(*known.variant, outline(), options);
    if (reason.empty()) reason = why_no_replay(*known.variant, outline(), options);
    if (!reason.empty()) throw Error(ErrorKind::usage, fmt::format("--between {}: {}", name, reason));
    Side side{other ? builder_.reproduction(part_, *other, *known.variant, options)
                    : builder_.computed_answer(part_, *known.variant, options),
              {}};
    for (const kda::Pass pass : kda::every_pass)
      if (why_no_pass(pass, *known.variant, options.arithmetic, outline().dimensions).empty())
        for (const std::string& tensor : kda::tensors_of(pass, outline())) side.tensors.push_back(tensor);
    return side;
  }

  Builder& builder_;
  const Asked& asked_;
  const Asked::Part& part_;
  const Request& request_;
  const std::vector<std::size_t> recorded_;
};

/// Of every recorded output that is asked for: one case for all of it, or one for each pass.
void add_recorded(Builder& builder, const Asked& asked, const Asked::Part& part, Question question,
                  const Reference& reference, bool by_pass) {
  const std::vector<std::size_t> recorded = builder.recorded_answers(asked, part);
  if (recorded.empty()) builder.add_note(part, "skipped: nothing is recorded");
  for (const std::size_t index : recorded) {
    const Answer& who = builder.problem(part).answers[index];
    if (!wants_recorded(*asked.request, who.name)) continue;
    const kda::Outline& outline = builder.problem(part).outline;
    const Names held = recorded_tensors(*asked.source->expected_named(who.name), outline);
    std::string reason = who.why_not;
    if (reason.empty() && held.empty())
      reason = fmt::format("expected/{} has neither outputs nor gradients", who.name);
    if (!reason.empty()) {
      builder.add_note(part, "skipped: " + reason);
      continue;
    }
    for (const kda::Pass pass : kda::every_pass) {
      Case item;
      item.question = question, item.answer = index, item.reference = reference, item.tensors = held;
      item.pass = pass;
      const Names own = kda::tensors_of(pass, outline);
      if (by_pass) std::erase_if(item.tensors, [&](const auto& name) { return !has(own, name); });
      const bool is_wanted =
          by_pass ? asked.request->selection.pass.value_or(pass) == pass : pass == kda::Pass::forward;
      if (!item.tensors.empty() && is_wanted) builder.add_case(asked, part, std::move(item));
    }
  }
}

void add_identities(Builder& builder, const Asked& asked, const Asked::Part& part) {
  if (!asked.request->between.empty()) return Between(builder, asked, part).add();
  add_recorded(builder, asked, part, Question::identity, {Reference::Kind::none, 0, {}}, false);
}

void add_growth_of(Builder& builder, const Asked& asked, const Asked::Part& part, const PassTensors& wanted) {
  const Request& request = *asked.request;
  const std::string against = request.selection.against ? request.selection.against->front() : "oracle";
  Reference reference{Reference::Kind::oracle, 0, "oracle"};
  std::vector<std::size_t> answers = builder.computed_answers(asked, part);
  const std::vector<std::size_t> recorded = builder.recorded_answers(asked, part);
  const auto& known = [&](std::size_t index) -> const Answer& {
    return builder.problem(part).answers[index];
  };
  const auto group = [&](std::size_t index) { return asked.source->expected_named(known(index).name); };
  if (against != "oracle") {
    const auto found =
        std::ranges::find_if(recorded, [&](std::size_t i) { return known(i).name == against; });
    if (found == recorded.end())
      return builder.fail(asked, Error(ErrorKind::input, fmt::format("no group expected/{}", against),
                                       asked.source->target().path, "kda-check show FILE lists them"));
    if (!part.as_stored) return builder.add_note(part, "skipped: " + known(*found).why_not);
    reference = {Reference::Kind::answer, *found, against};
    if (std::ranges::none_of(wanted.tensors,
                             [&](const auto& name) { return group(*found)->tensor(name) != nullptr; }))
      return builder.add_note(
          part, fmt::format("skipped: expected/{} has no {}", against,
                            wanted.pass == kda::Pass::backward ? "gradients" : join(wanted.tensors, " or ")));
  }
  if (part.as_stored)
    for (const std::size_t index : recorded)
      if (wants_recorded(request, known(index).name) && known(index).name != against)
        answers.push_back(index);
  for (const std::size_t index : answers) {
    const Answer& who = known(index);
    std::string reason = who.is_computed() ? why_no_pass(wanted.pass, *who.variant, who.options.arithmetic,
                                                         asked.source->outline().dimensions)
                                           : std::string();
    if (reason.empty()) reason = who.why_not;
    Case item;
    item.question = Question::growth, item.answer = index, item.reference = reference;
    item.pass = wanted.pass, item.tensors = wanted.tensors;
    for (const std::size_t side : {index, reference.answer})
      if (const fixture::ExpectedGroup* const held = known(side).is_computed() ? nullptr : group(side);
          held != nullptr && (side == index || reference.kind == Reference::Kind::answer))
        std::erase_if(item.tensors, [&](const auto& name) { return held->tensor(name) == nullptr; });
    if (reason.empty() && item.tensors.empty()) continue;
    if (reason.empty())
      builder.add_case(asked, part, std::move(item));
    else
      builder.add_note(part,
                       fmt::format("skipped: {} {}: {}", who.name, numeric::name_of(who.dtype), reason));
  }
}

void add_growth(Builder& builder, const Asked& asked, const Asked::Part& part) {
  for (PassTensors wanted : tensors_of(*asked.request, known_tensors(Task::explain))) {
    const Names here = kda::tensors_of(wanted.pass, builder.problem(part).outline);
    std::erase_if(wanted.tensors, [&](const std::string& name) { return !has(here, name); });
    if (wanted.tensors.empty())
      builder.add_note(part, "skipped: without do or dht there are no gradients");
    else
      add_growth_of(builder, asked, part, wanted);
  }
  if (!part.as_stored)
    builder.add_note(part, fmt::format("{}: inputs rounded to it first", numeric::name_of(part.dtypes[0])));
}

/// Of forms in chunks: an overflow of the token forms is beside any of them.
void add_forecasts(Builder& builder, const Asked& asked, const Asked::Part& part) {
  const Request& request = *asked.request;
  std::vector<const kda::Variant*> variants = {&kda::variant_named("chunk")};
  if (request.selection.variants) variants = variants_of(request);
  std::erase_if(variants, [](const kda::Variant* variant) { return !variant->axes.chunk; });
  if (variants.empty()) builder.add_note(part, "skipped: what overflows is told of variants in chunks");
  for (const numeric::DType dtype : part.dtypes)
    for (const kda::Variant* const variant : variants) {
      const kda::Outline& outline = builder.problem(part).outline;
      const kda::RunOptions options = run_options(*variant, outline, dtype, request.arithmetic,
                                                  request.chunk_size.value_or(outline.chunk_size()));
      if (const std::string reason = kda::unsupported(options.arithmetic, dtype); !reason.empty())
        throw Error(ErrorKind::usage, fmt::format("--dtype {}: {}", numeric::name_of(dtype), reason));
      if (const std::string reason = kda::variant_named("chunk").unsupported(outline, options);
          !reason.empty()) {
        builder.add_note(part, fmt::format("skipped: {}: {}", variant->name, reason));
        continue;
      }
      Case item;
      item.question = Question::overflow, item.reference = {Reference::Kind::none, 0, {}};
      item.answer = builder.computed_answer(part, *variant, options);
      builder.add_case(asked, part, std::move(item));
    }
}

}  // namespace

void add_explanations(Builder& builder, const Asked& asked) {
  const Request& request = *asked.request;
  for (const Asked::Part& part : asked.parts) {
    if (request.says("bits") || request.says("shares")) add_identities(builder, asked, part);
    if (request.says("growth")) add_growth(builder, asked, part);
    if (request.says("overflow")) add_forecasts(builder, asked, part);
    if (request.says("faults"))
      add_recorded(builder, asked, part, Question::faults, {Reference::Kind::oracle, 0, "oracle"}, true);
  }
}

}  // namespace kda_check::plan

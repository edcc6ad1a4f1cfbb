// The cases of `attribute`: every answer against the oracle, axis by axis; or, between two answers, the steps
// from one to the other.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "plan/builder.hpp"
#include "plan/replay.hpp"
#include "plan/reproduction.hpp"

namespace kda_check::plan {

namespace {

using numeric::DType;

/// One end of a ladder, or an answer to take apart: itself, and the computed answer that takes its place
/// where something is changed.
struct End {
  std::string name;
  std::size_t answer;
  std::size_t computed_as;
};

class Attributed {
 public:
  Attributed(Builder& builder, const Asked& asked, const Asked::Part& part)
      : builder_(builder), asked_(asked), part_(part), request_(*asked.request) {}

  void add() {
    std::vector<PassTensors> passes = tensors_of(request_, known_tensors(Task::attribute));
    for (PassTensors& wanted : passes) {
      const Names here = kda::tensors_of(wanted.pass, outline());
      const Names asked_for = wanted.tensors;
      std::erase_if(wanted.tensors, [&](const std::string& name) { return !has(here, name); });
      if (wanted.tensors.empty())
        note_skip(outline().has_loss() ? fmt::format("the problem has no {}", join(asked_for, " or "))
                                       : std::string("without do or dht there are no gradients"));
      else if (request_.between.empty())
        add_pass(wanted);
      else
        add_ladder(wanted);
    }
    if (!part_.as_stored)
      builder_.add_note(part_,
                        fmt::format("{}: inputs rounded to it first", numeric::name_of(part_.dtypes[0])));
  }

 private:
  const kda::Outline& outline() const { return builder_.problem(part_).outline; }
  const Answer& answer(std::size_t index) const { return builder_.problem(part_).answers[index]; }
  void note_skip(const std::string& reason) { builder_.add_note(part_, "skipped: " + reason); }

  void add_pass(const PassTensors& wanted) {
    for (const std::size_t index : builder_.computed_answers(asked_, part_)) {
      const Answer& who = answer(index);
      std::string reason =
          why_no_pass(wanted.pass, *who.variant, who.options.arithmetic, outline().dimensions);
      if (reason.empty()) reason = who.why_not;
      if (reason.empty()) reason = why_no_replay(*who.variant, outline(), who.options);
      if (reason.empty())
        add_case(Question::attribution, {who.name, index, on_the_cpu(index)}, std::nullopt, wanted);
      else
        note_skip(fmt::format("{} {}: {}", who.name, numeric::name_of(who.dtype), reason));
    }
    if (!request_.selection.recorded || !part_.as_stored) return;
    for (const std::size_t index : builder_.recorded_answers(asked_, part_))
      if (wants_recorded(request_, answer(index).name))
        add_case(Question::attribution, recorded_end(index, wanted), std::nullopt, wanted);
  }

  void add_ladder(const PassTensors& wanted) {
    add_case(Question::ladder, end_named(request_.between[0], wanted), end_named(request_.between[1], wanted),
             wanted);
  }

  void add_case(Question question, const End& got, const std::optional<End>& from,
                const PassTensors& wanted) {
    Case item;
    item.question = question, item.pass = wanted.pass, item.tensors = wanted.tensors;
    item.answer = got.answer, item.computed_as = got.computed_as;
    item.reference = {Reference::Kind::oracle, 0, "oracle"};
    if (from) {
      item.reference = {Reference::Kind::answer, from->answer, from->name};
      item.reference_computed_as = from->computed_as;
    }
    builder_.add_case(asked_, part_, std::move(item)).who = got.name;
  }

  /// A GPU variant takes no steps: its replay does.
  std::size_t on_the_cpu(std::size_t index) {
    const Answer& who = answer(index);
    return builder_.computed_answer(part_, on_cpu(*who.variant), who.options);
  }

  /// A recorded answer of that name comes before a variant.
  End end_named(const std::string& name, const PassTensors& wanted) {
    if (asked_.source->expected_named(name) != nullptr)
      for (const std::size_t index : builder_.recorded_answers(asked_, part_))
        if (answer(index).name == name) return recorded_end(index, wanted);
    return computed_end(name, wanted);
  }

  [[noreturn]] static void cannot_be_an_end(const std::string& name, const std::string& reason) {
    throw Error(ErrorKind::usage, fmt::format("--between {}: {}", name, reason));
  }

  End recorded_end(std::size_t index, const PassTensors& wanted) {
    const std::string name = answer(index).name;
    const fixture::ExpectedGroup& group = *asked_.source->expected_named(name);
    if (std::ranges::none_of(wanted.tensors,
                             [&](const auto& tensor) { return group.tensor(tensor) != nullptr; }))
      throw Error(ErrorKind::input,
                  fmt::format("expected/{} has no {} to explain", name, join(wanted.tensors, " or ")),
                  asked_.source->target().path);
    std::optional<Reproduction> known = reproduction_of(group, request_.registry);
    if (!request_.as.empty()) known = reproduction_named(request_.as, request_.registry);
    if (!known)
      throw Error(ErrorKind::usage, fmt::format("nothing is known of how expected/{} was computed", name), {},
                  "say how it is taken to compute: --as chunk+fla, or another variant and preset");
    Names arithmetic = request_.arithmetic;
    arithmetic.insert(arithmetic.end(), known->arithmetic.begin(), known->arithmetic.end());
    const std::size_t chunk_size =
        known->chunk_size != 0 ? known->chunk_size : request_.chunk_size.value_or(outline().chunk_size());
    const kda::RunOptions options =
        run_options(*known->variant, outline(), answer(index).dtype, arithmetic, chunk_size);
    check_end(name, *known->variant, options, wanted);
    return {name, index, builder_.reproduction(part_, index, *known->variant, options)};
  }

  End computed_end(const std::string& name, const PassTensors& wanted) {
    const Reproduction known = named_end(name);
    Names arithmetic = request_.arithmetic;
    arithmetic.insert(arithmetic.end(), known.arithmetic.begin(), known.arithmetic.end());
    const DType dtype = dtypes_of(request_, asked_.source->outline()).front();
    if (!part_.as_stored)
      throw Error(ErrorKind::usage,
                  fmt::format("--between: {} does not hold the {} inputs", numeric::name_of(dtype),
                              numeric::name_of(asked_.source->outline().dtype())),
                  {}, "write the rounded problem first, or attribute without --between");
    const kda::RunOptions options = run_options(*known.variant, outline(), dtype, arithmetic,
                                                request_.chunk_size.value_or(outline().chunk_size()));
    check_end(name, *known.variant, options, wanted);
    const std::size_t index = builder_.computed_answer(part_, *known.variant, options);
    return {name, index, on_the_cpu(index)};
  }

  Reproduction named_end(const std::string& name) const {
    const std::string variant = name.substr(0, name.find('+'));
    if (std::ranges::any_of(request_.registry, [&](const auto& row) { return row.name == variant; }))
      return reproduction_named(name, request_.registry);
    Names names;
    for (const kda::Variant& row : request_.registry) names.emplace_back(row.name);
    for (const fixture::ExpectedGroup& group : asked_.source->expected()) names.push_back(group.name);
    throw Error(ErrorKind::usage, fmt::format("--between {}: neither a variant nor a recorded answer", name),
                {}, "one of: " + join(names) + "; a variant may have a preset, chunk+fla");
  }

  void check_end(const std::string& name, const kda::Variant& variant, const kda::RunOptions& options,
                 const PassTensors& wanted) const {
    std::string reason = why_no_pass(wanted.pass, variant, options.arithmetic, outline().dimensions);
    if (reason.empty()) reason = why_not(variant, outline(), options);
    if (reason.empty()) reason = why_no_replay(variant, outline(), options);
    if (!reason.empty()) cannot_be_an_end(name, reason);
  }

  Builder& builder_;
  const Asked& asked_;
  const Asked::Part& part_;
  const Request& request_;
};

}  // namespace

void add_attributions(Builder& builder, const Asked& asked) {
  if (!asked.request->between.empty() && dtypes_of(*asked.request, asked.source->outline()).size() > 1)
    throw Error(ErrorKind::usage, "--between takes one --dtype");
  for (const Asked::Part& part : asked.parts) Attributed(builder, asked, part).add();
}

}  // namespace kda_check::plan

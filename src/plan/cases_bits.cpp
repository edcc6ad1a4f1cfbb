// The cases of `explain` and `explain-bits`.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
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

}  // namespace

void add_bits(Builder& builder, const Asked& asked) {
  for (const Asked::Part& part : asked.parts) {
    if (!asked.request->between.empty()) {
      Between(builder, asked, part).add();
      continue;
    }
    const std::vector<std::size_t> recorded = builder.recorded_answers(asked, part);
    if (recorded.empty()) builder.add_note(part, "skipped: nothing is recorded");
    for (const std::size_t index : recorded) {
      const std::string& name = builder.problem(part).answers[index].name;
      if (!wants_recorded(*asked.request, name)) continue;
      Case item;
      item.question = asked.request->task == Task::bits ? Question::bits : Question::identity,
      item.answer = index, item.reference = {Reference::Kind::none, 0, {}};
      item.tensors = recorded_tensors(*asked.source->expected_named(name), builder.problem(part).outline);
      if (item.tensors.empty())
        builder.add_note(part, fmt::format("skipped: expected/{} has neither o nor final_state", name));
      else
        builder.add_case(asked, part, std::move(item));
    }
  }
}

}  // namespace kda_check::plan

// The cases of `grow`, `forecast` and `capture`.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "plan/builder.hpp"
#include "plan/reproduction.hpp"

namespace kda_check::plan {

namespace {

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

}  // namespace

void add_growth(Builder& builder, const Asked& asked) {
  for (const Asked::Part& part : asked.parts) {
    for (PassTensors wanted : tensors_of(*asked.request, known_tensors(Task::grow))) {
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
}

void add_forecasts(Builder& builder, const Asked& asked) {
  const Request& request = *asked.request;
  const kda::Variant& chunk = kda::variant_named("chunk");
  for (const Asked::Part& part : asked.parts)
    for (const numeric::DType dtype : part.dtypes) {
      const kda::Outline& outline = builder.problem(part).outline;
      const kda::RunOptions options = run_options(chunk, outline, dtype, request.arithmetic,
                                                  request.chunk_size.value_or(outline.chunk_size()));
      if (const std::string reason = kda::unsupported(options.arithmetic, dtype); !reason.empty())
        throw Error(ErrorKind::usage, fmt::format("--dtype {}: {}", numeric::name_of(dtype), reason));
      Case item;
      item.question = Question::forecast, item.reference = {Reference::Kind::none, 0, {}};
      item.answer = builder.computed_answer(part, chunk, options);
      builder.add_case(asked, part, std::move(item));
    }
}

void add_captures(Builder& builder, const Asked& asked) {
  const Request& request = *asked.request;
  const Source& source = *asked.source;
  for (const Asked::Part& part : asked.parts) {
    if (!part.as_stored)
      throw Error(
          ErrorKind::usage,
          fmt::format("--dtype {} does not hold the {} inputs of {}", numeric::name_of(part.dtypes[0]),
                      numeric::name_of(source.outline().dtype()), source.target().path),
          {}, "what is captured answers the stored inputs; write rounded ones first");
    for (const std::size_t index : builder.computed_answers(asked, part)) {
      const Answer& who = builder.problem(part).answers[index];
      if (const std::string reason = who.variant->unavailable(); !reason.empty())
        throw Error(ErrorKind::environment, fmt::format("{}: {}", who.name, reason), {},
                    "kda-check list says what can run here");
      if (!who.why_not.empty()) throw Error(ErrorKind::usage, fmt::format("{}: {}", who.name, who.why_not));
      const std::string group = captured_name(who.name, kda::device_of(*who.variant));
      if (source.expected_named(group) != nullptr && !request.replace)
        throw Error(ErrorKind::usage, fmt::format("expected/{} exists", group), source.target().path,
                    "--replace writes it anew");
      const std::size_t of_file = source.outline().chunk_size();
      if (request.capture_stages && who.variant->axes.chunk && who.options.chunk_size != of_file)
        throw Error(ErrorKind::usage,
                    fmt::format("--chunk-size {}: stages are stored in the chunks of the problem, {} tokens",
                                who.options.chunk_size, of_file),
                    {},
                    source.target().is_regime
                        ? fmt::format("--no-stages, or the regime with C={}", who.options.chunk_size)
                        : "--no-stages");
      if (const std::string_view reason = why_no_stages(who.options.arithmetic);
          request.capture_stages && who.variant->axes.chunk && !reason.empty())
        throw Error(ErrorKind::usage, fmt::format("no stages of {}: {}", who.name, reason), {},
                    "--no-stages");
      Case item;
      item.question = Question::capture, item.answer = index, item.reference = {Reference::Kind::none, 0, {}};
      item.tensors = kda::tensors_of(kda::Pass::forward);
      if (why_no_pass(kda::Pass::backward, *who.variant, who.options.arithmetic, source.outline().dimensions)
              .empty())
        for (std::string& gradient : kda::tensors_of(kda::Pass::backward, source.outline()))
          item.tensors.push_back(std::move(gradient));
      builder.add_case(asked, part, std::move(item));
    }
  }
}

}  // namespace kda_check::plan

// The cases of `capture`.
#include <fmt/format.h>

#include "base/error.hpp"
#include "plan/builder.hpp"
#include "plan/reproduction.hpp"

namespace kda_check::plan {

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
      item.tensors = kda::tensors_of(kda::Pass::forward, source.outline());
      if (why_no_pass(kda::Pass::backward, *who.variant, who.options.arithmetic, source.outline().dimensions)
              .empty())
        for (std::string& gradient : kda::tensors_of(kda::Pass::backward, source.outline()))
          item.tensors.push_back(std::move(gradient));
      builder.add_case(asked, part, std::move(item));
    }
  }
}

}  // namespace kda_check::plan

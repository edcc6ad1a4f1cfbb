// The cases of `explain` and `explain-bits`.
#include <fmt/format.h>

#include "plan/builder.hpp"

namespace kda_check::plan {

void add_bits(Builder& builder, const Asked& asked) {
  for (const Asked::Part& part : asked.parts)
    for (const std::size_t index : builder.recorded_answers(asked, part)) {
      const std::string& name = builder.problem(part).answers[index].name;
      if (!wants_recorded(*asked.request, name)) continue;
      Case item;
      item.question = asked.request->task == Task::bits ? Question::bits : Question::identity,
      item.answer = index, item.reference = {Reference::Kind::none, 0, {}};
      for (const kda::Pass pass : kda::every_pass)
        for (const std::string& tensor : kda::tensors_of(pass, builder.problem(part).outline))
          if (asked.source->expected_named(name)->tensor(tensor) != nullptr) item.tensors.push_back(tensor);
      if (item.tensors.empty())
        builder.add_note(part, fmt::format("skipped: expected/{} has neither o nor final_state", name));
      else
        builder.add_case(asked, part, std::move(item));
    }
}

}  // namespace kda_check::plan

// The cases of `power`.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "plan/builder.hpp"
#include "plan/power_classes.hpp"

namespace kda_check::plan {

namespace {

using numeric::DType;

struct Class {
  std::string_view name;
  DType dtype;
  std::string_view storage;
};
constexpr Class classes[] = {{"bf16", DType::bf16, "storage=upstream"},
                             {"fp16", DType::fp16, "storage=upstream"},
                             {"tf32", DType::fp32, "storage=fla"},
                             {"fp32", DType::fp32, "storage=none"}};

const Class& class_named(std::string_view name) {
  const auto found = std::ranges::find(classes, name, &Class::name);
  if (found != std::end(classes)) return *found;
  if (name == "fp64")
    throw Error(ErrorKind::usage, "--class fp64: there are no twins in fp64, the limits decide alone", {},
                "bf16, fp16, tf32 or fp32");
  throw Error(ErrorKind::usage, fmt::format("--class {}: no such class", name), {},
              suggest(name, power_classes()));
}

/// Those of a part that were asked for; unasked that of its element type.
Names classes_of(const Request& request, const Asked::Part& part) {
  Names names;
  for (const DType dtype : part.dtypes)
    for (const Class& one : classes)
      if (one.dtype == dtype &&
          (request.classes.empty() ? one.name == numeric::name_of(dtype) : has(request.classes, one.name)))
        names.emplace_back(one.name);
  return names;
}

}  // namespace

Names power_classes() {
  Names names;
  for (const Class& one : classes) names.emplace_back(one.name);
  return names;
}

DType power_dtype(std::string_view name) { return class_named(name).dtype; }

std::string_view power_class(const Answer& answer) {
  // In 16 bits some products are in tf32, whatever the class.
  if (numeric::format_of(answer.dtype).bytes == 2) return numeric::name_of(answer.dtype);
  return numeric::row_of(kda::compute_format(*answer.variant, answer.dtype, answer.options.arithmetic)).name;
}

kda::RunOptions healthy_options(std::string_view name, const kda::Outline& problem) {
  const Class& one = class_named(name);
  return run_options(kda::variant_named("chunk"), problem, one.dtype,
                     {std::string(one.storage), "decay=anchor-pair:32", "inverse=blocks:32",
                      "exponential=libm", "reduction=tree:8"},
                     problem.chunk_size());
}

void add_powers(Builder& builder, const Asked& asked) {
  const Request& request = *asked.request;
  const kda::Variant& chunk = kda::variant_named("chunk");
  for (const Asked::Part& part : asked.parts) {
    const Names names = classes_of(request, part);
    if (names.empty())
      return builder.fail(asked, Error(ErrorKind::input, "a problem in fp64, in which there are no twins",
                                       asked.source->target().path, "--class fp32"));
    for (const std::string& name : names)
      for (const std::string& tensor : request.selection.tensors.value_or(Names{"o"})) {
        const kda::Outline& outline = builder.problem(part).outline;
        Case item;
        item.question = Question::power, item.reference = {Reference::Kind::oracle, 0, "oracle"};
        item.answer = builder.computed_answer(part, chunk, healthy_options(name, outline));
        item.tensors = {tensor};
        builder.add_case(asked, part, std::move(item));
      }
    if (!part.as_stored)
      builder.add_note(part, fmt::format("{}: inputs rounded to it first", numeric::name_of(part.dtypes[0])));
  }
}

}  // namespace kda_check::plan

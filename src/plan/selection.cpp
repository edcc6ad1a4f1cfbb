#include "plan/selection.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "explain/invariants/invariants.hpp"
#include "kda/arithmetic/launch_words.hpp"
#include "kda/arithmetic/tensor_core_limits.hpp"
#include "numeric/dtype_words.hpp"

namespace kda_check::plan {

using numeric::DType;

namespace {

using List = std::optional<Names>;

/// A name is selected when the command line has nothing against it and, first, the line names it, or else the
/// command line does, or else it is what is usual.
bool selected(const List& line, const List& command, std::string_view name, bool usual) {
  if (command && !has(*command, name)) return false;
  return line ? has(*line, name) : command ? true : usual;
}

/// The list that names are taken from: nullptr where what is usual is.
const Names* named(const List& line, const List& command) {
  return line ? &*line : command ? &*command : nullptr;
}

Names variant_names(std::span<const kda::Variant> registry) {
  Names names;
  for (const kda::Variant& variant : registry) names.emplace_back(variant.name);
  return names;
}

DType dtype_named(const std::string& name, DType of_problem) {
  if (name == "fixture") return of_problem;
  if (const auto dtype = numeric::dtype_of_word(name)) return *dtype;
  Names known{"fixture"};
  for (const numeric::Format& format : numeric::formats) known.emplace_back(format.name);
  throw Error(ErrorKind::usage, fmt::format("no dtype '{}'", name), {}, suggest(name, known));
}

bool is_special(std::string_view against) {
  return against == "oracle" || against == "all" || against == "replay";
}

/// "all" names the oracle and every group.
bool names_reference(const List& list, std::string_view name) {
  return !list || has(*list, name) || (name != "replay" && has(*list, "all"));
}

bool wants_against(const Request& request, std::string_view name, bool usual) {
  const List &line = request.selection.against, &command = request.narrowing.against;
  if (command && !names_reference(command, name)) return false;
  return line ? names_reference(line, name) : command ? true : usual;
}

/// A part of a launch that none of the variants has decides nothing.
void check_launch(const std::string& assignment, const kda::Launch& launch,
                  const std::vector<const kda::Variant*>& variants) {
  const auto are_all = [&](bool chunk) {
    return std::ranges::all_of(variants, [&](const auto* variant) { return variant->axes.chunk == chunk; });
  };
  for (const bool chunk : {false, true})
    if (const std::string_view foreign = kda::foreign_part(launch, chunk);
        !variants.empty() && are_all(chunk) && !foreign.empty())
      throw Error(ErrorKind::usage,
                  fmt::format("--arithmetic {}: none of the selected variants has a part '{}' of a launch",
                              assignment, foreign),
                  {}, "block is of recurrent and naive, all other parts are of chunk");
}

/// Nor does one that sums in the order that is asked for do not read.
void check_launch_is_read(const std::string& assignment, const kda::Launch& launch,
                          const kda::Reduction& reduction) {
  if (const std::string_view idle = kda::idle_part(launch, reduction); !idle.empty())
    throw Error(ErrorKind::usage,
                fmt::format("--arithmetic {}: no sum reads '{}' in this order", assignment, idle), {},
                "a launch is that of reduction=triton and triton-rows, as in fla; its norm of lanes, too");
}

/// Of keys that both forms have: values that one of them computes with, as the other has nothing for them.
constexpr struct {
  std::string_view word;
  bool chunk;
} values_of_one_form[] = {{"delta=residual", true}, {"delta=chained", true},    {"delta=blocked", true},
                          {"delta=fused", false},   {"scale=q-late", true},     {"scale=norm", false},
                          {"update=added", true},   {"update=transposed", true}};

bool reads(const kda::Variant& variant, std::string_view assignment) {
  return std::ranges::none_of(values_of_one_form, [&](const auto& value) {
    return value.word == assignment && value.chunk != variant.axes.chunk;
  });
}

void check_arithmetic(const Request& own) {
  kda::Arithmetic whole;
  for (const std::string& assignment : own.arithmetic) kda::set_axis(whole, assignment);
  for (const std::string& assignment : own.arithmetic) {
    kda::Arithmetic named;
    kda::set_axis(named, assignment);
    const std::vector<const kda::Variant*> variants = variants_of(own);
    if (assignment.starts_with("launch=")) {
      check_launch(assignment, named.launch, variants);
      check_launch_is_read(assignment, named.launch, whole.reduction);
    }
    const bool anybody = std::any_of(variants.begin(), variants.end(), [&](const kda::Variant* variant) {
      return kda::has_axis(variant->axes, assignment);
    });
    if (!anybody && !variants.empty())
      throw Error(ErrorKind::usage,
                  fmt::format("--arithmetic {}: none of the selected variants has this axis", assignment));
    if (!variants.empty() &&
        std::ranges::none_of(variants, [&](const auto* variant) { return reads(*variant, assignment); }))
      throw Error(
          ErrorKind::usage,
          fmt::format("--arithmetic {}: no selected variant has anything that this changes", assignment));
  }
}

void check_references(const Request& own) {
  const Names against = own.selection.against.value_or(Names{});
  if (own.oracle == OracleChoice::none && has(against, "oracle"))
    throw Error(ErrorKind::usage, "--against oracle contradicts --oracle none");
  if (!has(against, "replay")) return;
  const std::vector<const kda::Variant*> variants = variants_of(own);
  if (std::any_of(variants.begin(), variants.end(), [](const auto* v) { return !v->replay.empty(); })) return;
  std::string hint = "only GPU variants have a replay";
  for (const kda::Variant& variant : own.registry)
    if (const std::string reason = variant.unavailable(); !variant.replay.empty() && !reason.empty())
      hint = fmt::format("{} cannot run here: {}", variant.name, reason);
  throw Error(ErrorKind::usage, "--against replay: no GPU variant is selected", {}, hint);
}

void check_tensors(const Request& own) {
  const std::vector<PassTensors> known = known_tensors(own.task);
  Names all;
  for (const PassTensors& pass : known) all.insert(all.end(), pass.tensors.begin(), pass.tensors.end());
  for (const std::string& name : own.selection.tensors.value_or(Names{})) {
    if (!has(all, name))
      throw Error(ErrorKind::usage, fmt::format("{} has no tensor '{}'", own.command, name), {},
                  suggest(name, all));
    for (const PassTensors& pass : known)
      if (own.selection.pass && pass.pass != *own.selection.pass && has(pass.tensors, name))
        throw Error(ErrorKind::usage,
                    fmt::format("--tensor {} contradicts {}", name,
                                *own.selection.pass == kda::Pass::forward ? "--no-backward" : "--backward"));
  }
}

void check_external(const Request& own) {
  if (!own.external) return;
  const ExternalProgram& program = *own.external;
  for (const char* const word : {"{in}", "{out}"})
    if (program.command.find(word) == std::string::npos)
      throw Error(ErrorKind::usage, fmt::format("--external '{}' lacks {}", program.command, word), {},
                  "e.g. --external 'python3 my_kernel.py {in} {out}'");
  const std::string& name = program.name;
  const bool odd = name.empty() || name.find_first_of("/,: ") != std::string::npos || name.front() == '.';
  if (is_special(name) || name == "fixture" || odd || has(variant_names(own.registry), name))
    throw Error(ErrorKind::usage, fmt::format("--external-name '{}' cannot be the name of an answer", name),
                {}, "letters, digits, - and _, and not the name of a variant");
}

}  // namespace

bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_words(const Request& own) {
  for (const std::string& name : own.selection.variants.value_or(Names{}))
    kda::variant_named(name, own.registry);
  for (const std::string& name : own.selection.dtypes.value_or(Names{})) dtype_named(name, DType::fp32);
  if (own.invariants) {
    Names laws;
    for (const explain::Invariant& law : explain::invariants()) laws.emplace_back(law.name);
    for (const std::string& name : *own.invariants)
      if (!has(laws, name))
        throw Error(ErrorKind::usage, fmt::format("no invariant '{}'", name), {}, suggest(name, laws));
  }
  check_tensors(own);
  check_arithmetic(own);
  check_references(own);
  check_external(own);
}

std::vector<const kda::Variant*> variants_of(const Request& request) {
  const List &line = request.selection.variants, &command = request.narrowing.variants;
  std::vector<const kda::Variant*> list;
  if (const Names* const names = named(line, command)) {
    for (const std::string& name : without_repeats(*names))
      if (selected(line, command, name, true)) list.push_back(&kda::variant_named(name, request.registry));
    return list;
  }
  for (const kda::Variant& variant : request.registry)
    if (variant.unavailable().empty()) list.push_back(&variant);
  return list;
}

std::vector<DType> dtypes_of(const Request& request, const kda::Outline& problem) {
  const auto resolved = [&](const List& names) {
    std::vector<DType> list;
    for (const std::string& name : names.value_or(Names{"fixture"}))
      if (const DType dtype = dtype_named(name, problem.dtype());
          std::ranges::find(list, dtype) == list.end())
        list.push_back(dtype);
    return list;
  };
  const List &line = request.selection.dtypes, &command = request.narrowing.dtypes;
  std::vector<DType> list = resolved(line ? line : command);
  if (line && command)
    std::erase_if(list, [allowed = resolved(command)](DType dtype) {
      return std::ranges::find(allowed, dtype) == allowed.end();
    });
  return list;
}

bool holds_exactly(DType wide, DType narrow) {
  const numeric::Format &a = numeric::format_of(wide), &b = numeric::format_of(narrow);
  return a.precision >= b.precision && a.max_exponent >= b.max_exponent && a.min_exponent <= b.min_exponent;
}

std::vector<PassTensors> known_tensors(Task task) {
  std::vector<PassTensors> known;
  for (const kda::Pass pass : kda::every_pass) {
    known.push_back({pass, kda::tensors_of(pass)});
    if (task == Task::power) std::erase(known.back().tensors, "checkpoints");
    if (task == Task::power && pass == kda::Pass::backward) known.pop_back();
    if (task == Task::explain)  // of growth
      std::erase_if(known.back().tensors, [](const std::string& name) { return !kda::has_tokens(name); });
  }
  return known;
}

std::vector<PassTensors> tensors_of(const Request& request, const std::vector<PassTensors>& known) {
  const Selection &line = request.selection, &command = request.narrowing;
  const bool any_named = line.tensors || command.tensors || line.pass || command.pass;
  std::vector<PassTensors> list;
  for (const PassTensors& pass : known) {
    const bool usual = request.task == Task::judge || any_named || pass.pass == kda::Pass::forward;
    PassTensors wanted{pass.pass, {}};
    for (const std::string& name : pass.tensors)
      if (selected(line.tensors, command.tensors, name, usual)) wanted.tensors.push_back(name);
    const bool other_pass =
        (line.pass && *line.pass != pass.pass) || (command.pass && *command.pass != pass.pass);
    if (!other_pass && !wanted.tensors.empty()) list.push_back(std::move(wanted));
  }
  return list;
}

std::string words_for_tensors(const Selection& selection) {
  Names words;
  if (selection.tensors) words.push_back("--tensor " + join(*selection.tensors, ","));
  if (selection.pass)
    words.emplace_back(*selection.pass == kda::Pass::forward ? "--no-backward" : "--backward");
  return join(words, " ");
}

bool wants_recorded(const Request& request, std::string_view group) {
  return selected(request.selection.recorded, request.narrowing.recorded, group, true);
}

bool wants_oracle(const Request& request) {
  return request.oracle_or_usual() != OracleChoice::none && wants_against(request, "oracle", true);
}

bool wants_replay(const Request& request) { return wants_against(request, "replay", false); }

bool wants_reference(const Request& request, std::string_view group) {
  return wants_against(request, group, true);
}

bool wants_law(const Request& request, const explain::Invariant& law) {
  if (!request.invariants) return false;
  return has(*request.invariants, law.name) || (request.invariants->empty() && !law.by_name);
}

Names named_groups(const Request& request) {
  Names names;
  const auto add = [&](const List& line, const List& command) {
    if (const Names* const list = named(line, command))
      for (const std::string& name : *list)
        if (!is_special(name) && selected(line, command, name, true)) names.push_back(name);
  };
  add(request.selection.recorded, request.narrowing.recorded);
  add(request.selection.against, request.narrowing.against);
  if (request.task == Task::explain)  // a name that is no variant's
    for (const std::string& name : request.between)
      if (!has(variant_names(request.registry), name.substr(0, name.find('+')))) names.push_back(name);
  return without_repeats(std::move(names));
}

Names missing_groups(const Request& request, const Source& source) {
  Names missing = named_groups(request);
  std::erase_if(missing, [&](const std::string& name) { return source.expected_named(name) != nullptr; });
  return missing;
}

Answer computed_answer(const kda::Variant& variant, const kda::Outline& problem,
                       const kda::RunOptions& options) {
  Answer answer;
  answer.name = variant.name;
  answer.variant = &variant;
  answer.options = options;
  answer.dtype = options.dtype;
  answer.why_not = why_not(variant, problem, options);
  return answer;
}

std::vector<Answer> computed_answers(const Request& request, const kda::Outline& problem,
                                     const std::vector<DType>& dtypes) {
  const std::size_t chunk_size = request.chunk_size.value_or(problem.chunk_size());
  std::vector<Answer> list;
  for (const DType dtype : dtypes)
    for (const kda::Variant* const variant : variants_of(request))
      list.push_back(computed_answer(*variant, problem,
                                     run_options(*variant, problem, dtype, request.arithmetic, chunk_size)));
  return list;
}

kda::RunOptions run_options(const kda::Variant& variant, const kda::Outline& problem, DType dtype,
                            const Names& arithmetic, std::size_t chunk_size) {
  kda::RunOptions options;
  options.dtype = dtype;
  options.chunk_size = chunk_size;
  options.arithmetic = variant.default_arithmetic(problem, dtype);
  for (const std::string& assignment : arithmetic)
    if (kda::has_axis(variant.axes, assignment)) kda::set_axis(options.arithmetic, assignment);
  return options;
}

std::string why_not(const kda::Variant& variant, const kda::Outline& problem,
                    const kda::RunOptions& options) {
  const std::string reason = variant.unavailable();
  return reason.empty() ? variant.unsupported(problem, options) : reason;
}

std::string why_no_pass(kda::Pass pass, const kda::Variant& variant, const kda::Arithmetic& arithmetic,
                        const kda::Dimensions& dimensions) {
  if (pass == kda::Pass::forward) return {};
  if (variant.run_backward == nullptr) return "no backward pass";
  if (const std::string_view reason = kda::lacks_gradients(arithmetic, dimensions.strength); !reason.empty())
    return std::string(reason);
  return is_on_gpu(variant) ? kda::gpu_lacks_gradients(arithmetic, dimensions) : std::string();
}

std::string why_no_bits(const Case& item, const Problem& problem) {
  const Answer& answer = problem.answers[*item.answer];
  if (item.reference.kind != Reference::Kind::answer || !answer.is_computed()) return {};
  const Answer& theirs = problem.answers[item.reference.answer];
  if (numeric::format_of(answer.dtype).precision <= numeric::format_of(theirs.dtype).precision) return {};
  return fmt::format("{} is in {}: an answer in {} has no such bits", theirs.name,
                     numeric::name_of(theirs.dtype), numeric::name_of(answer.dtype));
}

std::string_view why_no_stages(const kda::Arithmetic& arithmetic) {
  if (arithmetic.beta == kda::BetaPart::keys) return "with beta=keys a chunk computes other numbers";
  if (arithmetic.scale == kda::ScaledPart::before) return "with scale=before a chunk computes other numbers";
  return "";
}

}  // namespace kda_check::plan

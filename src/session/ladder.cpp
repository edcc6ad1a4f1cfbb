#include "session/ladder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/attribution.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "session/capture.hpp"
#include "session/replay.hpp"
#include "session/selection.hpp"

namespace kda_check::session {

namespace {

using numeric::DType;

/// How the implementations that write fixtures compute, in our terms.
struct Emulation {
  std::string_view group, variant, backward, preset;  ///< `backward`: the variant of that pass
  std::size_t chunk_size;                             ///< 0: that of the fixture
};
constexpr Emulation emulations[] = {
    {"fla_chunk", "chunk", "chunk", "fla", 0},
    {"fla_recurrent", "recurrent", "recurrent", "fla", 0},
    {"flash_kda", "chunk", "chunk", "flash-kda", 16},
    {"torch_fp64", "naive", "recurrent", "", 0},
};

/// One end of a ladder. Steps are taken on the CPU, by `variant` in `options`; where the answer itself comes
/// from elsewhere - a file or a GPU - it is `answered`, and the variant computes as whoever answered.
struct End {
  std::string name;
  const kda::Variant* variant = nullptr;
  kda::RunOptions options;
  std::optional<Answered> answered;
};

/// What all ends are of.
struct Question {
  const Source& source;
  const kda::Problem& problem;
  const PassTensors& wanted;
  const AttributeRequest& request;
};

std::string known_ends(const Source& source, std::span<const kda::Variant> registry) {
  std::vector<std::string> names;
  for (const kda::Variant& variant : registry) names.emplace_back(variant.name);
  for (const fixture::ExpectedGroup& group : source.expected()) names.push_back(group.name);
  return join(names) + "; a variant may have a preset, chunk+fla";
}

/// What is known of how a recorded answer was computed: the table, what `capture` wrote beside it, or the
/// name of a GPU variant before an '@', which is taken to be in that variant's own arithmetic.
Reproduction reproduction_named(const std::string& name, const Source& source, Pass pass,
                                std::span<const kda::Variant> registry) {
  for (const Emulation& row : emulations) {
    if (row.group != name) continue;
    const std::string_view variant = pass == Pass::backward ? row.backward : row.variant;
    Reproduction known{&kda::variant_named(variant), {}, row.chunk_size};
    if (!row.preset.empty()) known.arithmetic.emplace_back(row.preset);
    return known;
  }
  if (std::optional<Reproduction> captured = reproduction_of(*source.expected_named(name))) return *captured;
  for (const kda::Variant& variant : registry)
    if (!variant.replay.empty() && name.starts_with(fmt::format("{}@", variant.name)))
      return {&on_cpu(variant), {"h100"}, 0};
  throw Error(ErrorKind::usage, fmt::format("--between {}: no variant here computes as it does", name), {},
              "fla_chunk, fla_recurrent, flash_kda, torch_fp64 and what kda-check capture wrote are known");
}

bool holds_any(const Answered& answer, const std::vector<std::string>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const std::string& name) { return answer.tensor(name) != nullptr; });
}

/// A recorded answer and the variant that computes as it does.
End recorded_end(const std::string& name, const Question& question) {
  const auto& [source, problem, wanted, request] = question;
  End end;
  end.name = name;
  for (Answered& answer : recorded_answers(source, wanted.tensors))
    if (answer.name == name) end.answered = std::move(answer);
  if (!end.answered || !holds_any(*end.answered, wanted.tensors))
    throw Error(ErrorKind::input,
                fmt::format("expected/{} has no {} to explain", name, join(wanted.tensors, " or ")),
                source.path());
  const Reproduction known = reproduction_named(name, source, wanted.pass, request.registry);
  std::vector<std::string> assignments = request.arithmetic;
  assignments.insert(assignments.end(), known.arithmetic.begin(), known.arithmetic.end());
  end.variant = known.variant;
  const auto of_file = static_cast<std::size_t>(problem.options.chunk_size);
  end.options = run_options(*end.variant, problem, end.answered->dtype, assignments,
                            known.chunk_size != 0 ? known.chunk_size : of_file, request.threads);
  return end;
}

/// A variant, in its own arithmetic or in a preset.
End computed_end(const std::string& name, const Question& question) {
  const auto& [source, problem, wanted, request] = question;
  const std::size_t plus = name.find('+');
  std::vector<std::string> assignments = request.arithmetic;
  if (plus != std::string::npos) assignments.push_back(name.substr(plus + 1));
  End end;
  end.name = name;
  for (const kda::Variant& variant : request.registry)
    if (variant.name == name.substr(0, plus)) end.variant = &variant;
  if (end.variant == nullptr)
    throw Error(ErrorKind::usage, fmt::format("--between {}: neither a variant nor a recorded answer", name),
                {}, "one of: " + known_ends(source, request.registry));
  const auto of_file = static_cast<std::size_t>(problem.options.chunk_size);
  const DType dtype = selected_dtypes(request.dtypes).front().value_or(problem.dtype());
  if (!holds_exactly(dtype, problem.dtype()))
    throw Error(ErrorKind::usage,
                fmt::format("--between: {} does not hold the {} inputs", numeric::name_of(dtype),
                            numeric::name_of(problem.dtype())),
                {}, "write the rounded problem first, or attribute without --between");
  end.options = run_options(*end.variant, problem, dtype, assignments, request.chunk_size.value_or(of_file),
                            request.threads);
  return end;
}

[[noreturn]] void cannot_be_an_end(const std::string& name, const std::string& reason) {
  throw Error(ErrorKind::usage, fmt::format("--between {}: {}", name, reason));
}

/// Runs a GPU variant once: its answer is the end, and its replay takes the steps.
void move_to_cpu(End& end, const kda::Problem& problem) {
  const kda::Variant& gpu = *end.variant;
  if (const std::string reason = why_no_replay(gpu, problem, end.options); !reason.empty())
    cannot_be_an_end(end.name, reason);
  end.answered = run_pass(Pass::forward, gpu, problem, end.options);
  end.variant = &on_cpu(gpu);
}

/// A recorded answer of that name comes before a variant.
End end_named(const std::string& name, const Question& question) {
  End end = question.source.expected_named(name) != nullptr ? recorded_end(name, question)
                                                            : computed_end(name, question);
  std::string reason = why_no_pass(question.wanted.pass, *end.variant);
  if (reason.empty()) reason = why_not(*end.variant, question.problem, end.options);
  if (!reason.empty()) cannot_be_an_end(name, reason);
  end.options.memory_limit = question.request.limits.memory_budget;
  if (!end.variant->replay.empty()) move_to_cpu(end, question.problem);
  return end;
}

/// What was reached after each step: an answer of its own, or that of an end.
struct Step {
  std::string change;
  Answered computed;
  const Answered* of_end = nullptr;

  const Answered& answer() const { return of_end != nullptr ? *of_end : computed; }
};

/// Different words may mean the same roundings: `fla` and `upstream` are one in 16 bits.
bool same_arithmetic(const kda::Problem& problem, const kda::Variant& variant, const kda::RunOptions& a,
                     const kda::RunOptions& b) {
  kda::Arithmetic left = a.arithmetic, right = b.arithmetic;
  for (kda::Arithmetic* const arithmetic : {&left, &right}) {
    arithmetic->casts = kda::cast_points(*arithmetic, a.dtype, problem.beta_is_16_bit(), variant.axes.chunk);
    arithmetic->storage = kda::Storage::named;
  }
  return left == right;
}

/// From `from` to the emulation of `to`: its variant first, for only then do all axes exist, then axis by
/// axis.
std::vector<Step> climb(const End& from, const End& to, Pass pass, const kda::Problem& problem,
                        const Log& log) {
  std::vector<Step> steps;
  const kda::Variant* variant = from.variant;
  kda::RunOptions options = from.options;
  const auto take = [&](std::string change) {
    if (log.progress) log.progress(change);
    steps.push_back({std::move(change), run_pass(pass, *variant, problem, options)});
  };
  if (from.answered) {
    steps.push_back({from.name, {}, &*from.answered});
    take(fmt::format("as {} computes it", variant->name));
  } else {
    take(from.name);
  }
  if (options.dtype != to.options.dtype) {
    options.dtype = to.options.dtype;
    take(fmt::format("dtype {}", numeric::name_of(options.dtype)));
  }
  if (options.chunk_size != to.options.chunk_size && variant->axes.chunk) {
    options.chunk_size = to.options.chunk_size;
    take(fmt::format("chunks of {}", options.chunk_size));
  }
  if (variant->name != to.variant->name) {
    variant = to.variant;
    options.chunk_size = to.options.chunk_size;
    kda::Arithmetic arithmetic = to.variant->default_arithmetic(problem, options.dtype);
    for (const kda::AxisRow& axis : kda::axes())
      if (axis.name != "formulation") axis.copy(options.arithmetic, arithmetic);
    // What the token form did not round the chunk form does not round yet.
    if (variant->axes.chunk && arithmetic.storage != kda::Storage::named)
      arithmetic.storage = kda::Storage::none;
    options.arithmetic = arithmetic;
    take(fmt::format("form of {}", variant->name));
  }
  for (const kda::AxisRow& axis : kda::axes()) {
    if (axis.name == "formulation" && !variant->axes.chunk) continue;
    const kda::RunOptions before = options;
    axis.copy(to.options.arithmetic, options.arithmetic);
    if (same_arithmetic(problem, *variant, before, options)) continue;
    take(fmt::format("{}={}", axis.name, kda::axis_value(options.arithmetic, axis.name)));
  }
  return steps;
}

/// `name`: a tensor that all steps have.
report::Ladder ladder_of(const std::vector<Step>& steps, const tensor::Tensor& goal,
                         const std::string& name) {
  report::Ladder ladder;
  ladder.tensor = name;
  ladder.elements = goal.size();
  const double scale = analysis::rms(analysis::values(goal));
  const analysis::Differences whole = analysis::difference(*steps.front().answer().tensor(name), goal);
  analysis::Differences before = whole;
  for (const Step& step : steps) {
    const tensor::Tensor& reached = *step.answer().tensor(name);
    const analysis::Differences left = analysis::difference(reached, goal);
    analysis::Differences change = before;
    for (std::size_t i = 0; i < change.size(); ++i) change[i] -= left[i];
    report::Rung rung;
    rung.change = step.change;
    rung.remaining = scale == 0 ? 0 : analysis::rms(left) / scale;
    rung.differing = reached.dtype() == goal.dtype() ? analysis::differing_bits(reached, goal) : goal.size();
    rung.share = analysis::share(change, whole);
    ladder.rungs.push_back(std::move(rung));
    before = left;
  }
  return ladder;
}

}  // namespace

std::vector<report::Ladder> ladders_between(const Source& source, const kda::Problem& problem,
                                            const PassTensors& wanted, const AttributeRequest& request,
                                            const Log& log) {
  const Question question{source, problem, wanted, request};
  const End to = end_named(request.between[0], question);
  const End from = end_named(request.between[1], question);
  std::vector<Step> steps = climb(from, to, wanted.pass, problem, log);
  const Answered goal = to.answered ? Answered() : run_pass(wanted.pass, *to.variant, problem, to.options);
  if (to.answered) steps.push_back({fmt::format("{} itself", to.name), {}, &*to.answered});
  std::vector<report::Ladder> ladders;
  for (const std::string& name : wanted.tensors) {
    const tensor::Tensor* const end = (to.answered ? *to.answered : goal).tensor(name);
    if (end == nullptr || steps.front().answer().tensor(name) == nullptr) continue;
    report::Ladder ladder = ladder_of(steps, *end, name);
    ladder.fixture = source.name();
    ladder.path = source.path();
    ladder.pass = name_of(wanted.pass);
    ladder.from = from.name;
    ladder.to = to.name;
    ladders.push_back(std::move(ladder));
  }
  return ladders;
}

}  // namespace kda_check::session

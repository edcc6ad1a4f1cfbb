// explain: why an output is what it is.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/command.hpp"

namespace kda_check::cli {

namespace {

constexpr char explain_footer[] =
    R"(Sections (docs/explain.md):
  bits      which computation gives this output: a search over kernels that people run and every setting of --arithmetic
  shares    what each of its settings costs
  growth    how the error of every output goes along T, window by window, and where it first crosses a limit
  overflow  which formulations overflow on these inputs, where and by how much: exponents, inverses, stored states
  faults    which known fault explains an output that errs beyond its limits

Examples:
  kda-check explain mine.h5                             every recorded output, and its gradients
  kda-check explain mine.h5 --recorded mine --advise    one of them: which roundings to keep finer first
  kda-check explain mine.h5 --between mine,fla_chunk    what makes the difference of two
  kda-check explain mine.h5 --between mine,chunk+fla    the same, with a kernel that kda-check knows
  kda-check explain mine.h5 --only faults               which known fault explains a failure
  kda-check explain mine.h5 --only growth --tensor dq,dk     its gradients, counted from the first and from the last token
  kda-check explain mine.h5 --only overflow --arithmetic flash-kda --chunk-size 16
  kda-check explain captures/ --json                    every output of a folder

Exit codes: 0 explained, or nothing to explain; 1 some output computes unlike any known kernel, is not finite or errs
beyond its limits, or the formulation overflows; 2 usage; 3 a file is missing or malformed; 4 something could not run or be
written; 70 a bug here.
)";

const Names sections = {"bits", "shares", "growth", "overflow", "faults"};

void check_sections(const plan::Request& request) {
  for (const std::string& name : request.only)
    if (std::ranges::find(sections, name) == sections.end())
      throw Error(ErrorKind::usage, fmt::format("explain has no section '{}'", name), {},
                  suggest(name, sections));
  const plan::Selection& selection = request.selection;
  const struct {
    const char* flag;
    bool given;
    Names about;
  } options[] = {{"--recorded", selection.recorded.has_value(), {"bits", "shares", "growth", "faults"}},
                 {"--between", !request.between.empty(), {"bits", "shares"}},
                 {"--advise", request.advise, {"shares"}},
                 {"--window", request.window.has_value(), {"growth"}},
                 {"--against", selection.against.has_value(), {"growth"}},
                 {"--tensor", selection.tensors.has_value(), {"growth"}},
                 {"--backward or --no-backward", selection.pass.has_value(), {"growth", "faults"}},
                 {"--variant", selection.variants.has_value(), {"growth", "overflow"}},
                 {"--dtype", selection.dtypes.has_value(), {"growth", "overflow"}},
                 {"--arithmetic", !request.arithmetic.empty(), {"growth", "overflow"}},
                 {"--chunk-size", request.chunk_size.has_value(), {"growth", "overflow"}}};
  for (const auto& option : options)
    if (option.given &&
        std::ranges::none_of(option.about, [&](const auto& name) { return request.says(name); }))
      throw Error(ErrorKind::usage,
                  fmt::format("{} says nothing of {}", option.flag, join(request.only, ", ")), {},
                  "--only " + join(option.about, ", or --only "));
}

void check_between(const plan::Request& request) {
  if (request.between.empty()) return;
  if (request.between.size() != 2)
    throw Error(ErrorKind::usage, "--between takes two outputs", {}, "--between mine,chunk+fla");
  if (request.selection.recorded) throw Error(ErrorKind::usage, "--between names its outputs itself");
  if (request.between[0] == request.between[1])
    throw Error(ErrorKind::usage,
                fmt::format("--between takes two outputs, and {} is one", request.between[0]));
}

}  // namespace

int explain_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  plan::Selection& selection = request.selection;
  request.task = plan::Task::explain, request.command = "explain";
  Parser parser("explain", "Why an output is what it is", explain_footer);
  add_targets(parser, request, "Fixtures, folders, regimes (kda-check list regimes)");
  parser.group("What is said");
  parser.names(
      "--only", "SECTION,...", [&](Names names) { request.only = std::move(names); },
      "bits, shares, growth, overflow, faults (default: bits,shares)");
  parser.flag("--advise", request.advise, "Which settings to make finer first, and what that gains");
  parser.group("What is selected");
  add_recorded(parser, selection, "Recorded outputs, or none (default: all)");
  parser.names(
      "--between", "A,B", [&](Names ends) { request.between = std::move(ends); },
      "Which settings make A differ from B: recorded outputs, variants, or variant+preset");
  parser.group("Of growth and overflow");
  add_variants(parser, selection,
               "Variants beside recorded outputs, or none (default: all that can run; for overflow: chunk)");
  add_dtypes(parser, selection);
  add_arithmetic(parser, request);
  add_chunk_size(parser, request);
  parser.group("Of growth and faults");
  add_passes(parser, selection);
  parser.group("Of growth");
  add_tensors(parser, selection);
  parser.value(
      "--against", "NAME", [&](const std::string& name) { selection.against = Names{name}; },
      "oracle (default), or the name of a recorded output");
  parser.number(
      "--window", 1, 1 << 20, [&](std::size_t tokens) { request.window = tokens; },
      "Tokens in a window (default: the chunk size)");
  add_oracle_device(parser, request);
  parser.group("In CI");
  add_requirements(parser, request);
  add_dry_run(parser, planned);
  add_output_options(parser, planned.output);
  add_resources(parser, planned.resources);
  if (!parser.parse(words)) return 0;
  check_sections(request);
  check_between(request);
  return run_planned(words, std::move(planned));
}

}  // namespace kda_check::cli

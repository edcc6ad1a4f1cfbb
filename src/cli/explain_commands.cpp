// explain, grow, attribute, explain-bits, forecast: what explains an error.
#include <fmt/format.h>

#include "base/error.hpp"
#include "cli/command.hpp"

namespace kda_check::cli {

namespace {

constexpr char grow_footer[] =
    R"(Every answer is followed window by window: rms_ratio, its slope in a log-log fit, the worst head, and the first token
at which a limit is crossed. Gradients are followed from both ends (docs/growth.md).

Examples:
  kda-check grow fla.h5                                o of every variant and recorded answer
  kda-check grow slow_alpha:T=4096 --dtype bf16        a problem made here
  kda-check grow fla.h5 --tensor dq,dk                 gradients
  kda-check grow fla.h5 --limit rms_ratio=1e-2         exit code 1 where that is crossed

Exit codes: 0 measured, no limit of yours crossed; 1 one was; 2 usage; 3 a file is missing or malformed; 4 something
could not run or be written; 70 a bug here.
)";

constexpr char attribute_footer[] =
    R"(Axes: contraction (FMA), exponential, reduction (order of sums), storage (operand rounding), formulation. Each is tried
alone, the others ideal, and made ideal alone, the others as computed (docs/attribution.md).

Examples:
  kda-check attribute fla.h5 --variant chunk --arithmetic fla     what makes FLA's kernel err on this file?
  kda-check attribute fla.h5 --variant recurrent --dtype fp32 --arithmetic h100
  kda-check attribute mine.h5 --variant none --recorded mine --as chunk+fla     a recorded answer, taken to compute so
  kda-check attribute fla.h5 --between fla_chunk,recurrent        from our recurrence to FLA's answer, step by step
  kda-check attribute fla.h5 --between gpu-chunk,chunk            what makes the difference between a GPU and a CPU?
  kda-check attribute fla.h5 --variant chunk --tensor dk          the same of a gradient

Exit codes: 0 attributed; 1 nothing was; 2 usage; 3 a file is missing or malformed; 4 something could not run or be
written; 70 a bug here.
)";

constexpr char explain_footer[] =
    R"(A search over kernels that people run and every setting of --arithmetic: which computation gives this output? It says how
much of the error that explains, what cannot be told apart, and what each rounding costs (docs/explain.md).

Examples:
  kda-check explain mine.h5                             every recorded output, and its gradients
  kda-check explain mine.h5 --recorded mine --advise    one of them: which roundings to keep finer first
  kda-check explain mine.h5 --between mine,fla_chunk    what makes the difference of two
  kda-check explain mine.h5 --between mine,chunk+fla    of one and a kernel that is known
  kda-check explain captures/ --json                    every output of a folder

Exit codes: 0 identified, or nothing to be identified; 1 some output computes unlike any known kernel, or is not finite; 2 usage; 3 a file is
missing or malformed; 4 something could not run or be written; 70 a bug here.
)";

constexpr char explain_bits_footer[] =
    R"(Every variant of the CPU in every preset is held against the recorded bits, in every launch that autotuning may have
picked; where bits are left, each with one word changed: a value of an axis, the length of chunks, the rounding at one
cast point (docs/explain-bits.md).

Examples:
  kda-check explain-bits fla.h5 --group fla_chunk       is it FLA's chunk_kda, and in which launch?
  kda-check explain-bits mine.h5 --group mine           what does my kernel differ in from those that are known?
  kda-check explain-bits captures/ --json               every recorded answer of a folder

Exit codes: 0 every bit is explained; 1 some are not; 2 usage; 3 a file is missing or malformed; 4 the report could not
be written; 70 a bug here.
)";

constexpr char forecast_footer[] =
    R"(Nothing is run: gates, keys and beta alone decide. docs/forecast.md says how to read it.

Examples:
  kda-check forecast fla.h5                                    what chunk would do by default
  kda-check forecast fla.h5 --arithmetic decay=factored:16     exit code 1 if that breaks
  kda-check forecast fla.h5 --arithmetic flash-kda --chunk-size 16
  kda-check forecast corr_keys:rho=0.99 --dtype fp16           a problem made here

Exit codes: 0 the selected formulation is safe; 1 it is forecast to overflow or to be wrong; 2 usage; 3 the file is
missing or malformed; 4 the report could not be written; 70 a bug here.
)";

constexpr char targets_text[] = "Fixtures, folders, regimes (kda-check list regimes)";

void add_rest(Parser& parser, Planned& planned) {
  parser.group("Gate");
  add_requirements(parser, planned.request);
  add_dry_run(parser, planned);
  add_output_options(parser, planned.output);
  add_resources(parser, planned.resources);
}

void check_between(const plan::Request& request) {
  if (request.between.empty()) return;
  if (request.between.size() != 2)
    throw Error(ErrorKind::usage, "--between takes two answers", {}, "--between fla_chunk,recurrent");
  if (request.selection.variants || request.selection.recorded)
    throw Error(ErrorKind::usage, "--between names its answers itself");
  if (request.task == plan::Task::explain && request.between[0] == request.between[1])
    throw Error(ErrorKind::usage,
                fmt::format("--between takes two answers, and {} is one", request.between[0]));
}

}  // namespace

int grow_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  request.task = plan::Task::grow, request.command = "grow";
  Parser parser("grow", "How the error of every answer goes along T", grow_footer);
  add_targets(parser, request, targets_text);
  add_selection(parser, request);
  parser.value(
      "--against", "NAME", [&](const std::string& name) { request.selection.against = Names{name}; },
      "oracle (default), or the name of a recorded answer");
  parser.number(
      "--window", 1, 1 << 20, [&](std::size_t tokens) { request.window = tokens; },
      "Tokens to a window (default: the chunk size)");
  parser.choice(
      "--oracle", "KIND", {"dd", "fp64"},
      [&](const std::string& kind) {
        request.oracle = kind == "fp64" ? plan::OracleChoice::fp64 : plan::OracleChoice::double_double;
      },
      "dd: double-double (default); fp64: faster");
  add_oracle_device(parser, request);
  parser.group("By what");
  add_limits(parser, request.judging, "Override the limit of rms_ratio, scaled_ulp or max_abs; repeatable");
  add_rest(parser, planned);
  if (!parser.parse(words)) return 0;
  check_judging(request.judging);
  return run_planned(words, std::move(planned));
}

int attribute_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  request.task = plan::Task::attribute, request.command = "attribute";
  Parser parser("attribute", "How much of an error each axis of the arithmetic and each stage makes",
                attribute_footer);
  add_targets(parser, request, targets_text);
  add_selection(parser, request);
  parser.names(
      "--between", "A,B", [&](Names ends) { request.between = std::move(ends); },
      "The steps from B to A: variants, variant+preset, or recorded answers");
  parser.value("--as", "VARIANT+PRESET", request.as,
               "How a recorded answer is taken to compute, e.g. chunk+fla");
  add_oracle_device(parser, request);
  add_rest(parser, planned);
  if (!parser.parse(words)) return 0;
  check_between(request);
  return run_planned(words, std::move(planned));
}

int explain_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  request.task = plan::Task::explain, request.command = "explain";
  Parser parser("explain", "Which computation gives a recorded output, and what each rounding in it costs",
                explain_footer);
  add_targets(parser, request, targets_text);
  parser.group("What is selected");
  parser.names(
      "--recorded", "NAME,...", [&](Names names) { request.selection.recorded = std::move(names); },
      "Recorded outputs (default: all)");
  parser.names(
      "--between", "A,B", [&](Names ends) { request.between = std::move(ends); },
      "The settings that make the difference of two: recorded outputs, variants, or variant+preset");
  parser.group("What is said");
  parser.flag("--advise", request.advise, "Which settings to make finer first, and what that gains");
  add_rest(parser, planned);
  if (!parser.parse(words)) return 0;
  check_between(request);
  return run_planned(words, std::move(planned));
}

int explain_bits_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  request.task = plan::Task::bits, request.command = "explain-bits";
  Parser parser("explain-bits", "Which known kernel computes a recorded answer, to the bit",
                explain_bits_footer);
  add_targets(parser, request, "Fixtures, folders");
  parser.group("What is selected");
  parser.names(
      "--group", "NAME,...", [&](Names names) { request.selection.recorded = std::move(names); },
      "Recorded answers (default: all)");
  add_rest(parser, planned);
  if (!parser.parse(words)) return 0;
  return run_planned(words, std::move(planned));
}

int forecast_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  request.task = plan::Task::forecast, request.command = "forecast";
  Parser parser("forecast", "What the inputs say about each formulation, before any kernel runs",
                forecast_footer);
  add_targets(parser, request, targets_text);
  parser.group("What is selected");
  add_dtypes(parser, request.selection);
  add_arithmetic(parser, request);
  add_chunk_size(parser, request);
  parser.group("Gate");
  add_dry_run(parser, planned);
  add_output_options(parser, planned.output);
  add_resources(parser, planned.resources);
  if (!parser.parse(words)) return 0;
  request.selection.variants = Names{"chunk"};  // whose axes --arithmetic is about
  return run_planned(words, std::move(planned));
}

}  // namespace kda_check::cli

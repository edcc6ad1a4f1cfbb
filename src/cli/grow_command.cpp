#include <fmt/format.h>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/judging_options.hpp"
#include "session/grow.hpp"
#include "session/requirements.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "Targets are fixture files, directories of them, or regimes (kda-check list regimes).\n"
    "Windows are of N tokens of a sequence; the slope is that of log(rms_ratio) on log(t): 1 for an error "
    "that\n"
    "grows with every token, 0 for one that does not. docs/growth.md says how to read the table.\n"
    "\n"
    "Examples:\n"
    "  kda-check grow long.h5                                  every variant and recorded answer\n"
    "  kda-check grow long.h5 --variant recurrent --dtype fp32,fp64 --window 128\n"
    "  kda-check grow long.h5 --limit scaled_ulp=50            where is that first exceeded?\n"
    "  kda-check grow long.h5 --tensor dv,dg                   gradients, along T and from its end\n"
    "  kda-check grow long.h5 --against fla_chunk --json       from a recorded answer; all arrays\n"
    "  kda-check grow weak_contraction_long --variant recurrent  on a problem made here\n"
    "\n"
    "Exit codes: 0 measured; 1 a limit of the command line was crossed; 2 usage; 3 a file is missing or\n"
    "malformed; 4 something could not run or be written; 70 a bug here.\n";

struct GrowCommand {
  session::GrowRequest request;
  std::string oracle = "dd", json_path;
  std::size_t window = 0, chunk_size = 0;
  std::vector<std::string> required;

  void add_options(CLI::App& app) {
    prepare(app, "grow", "How the error of every answer goes along T");
    app.footer(footer);
    app.add_option("targets", request.targets, "Fixtures, directories, regimes")->option_text("TARGET...");
    add_names(app, "--variant", request.variants, "Variants to run (default: all; kda-check list)",
              "NAME,...");
    add_names(app, "--dtype", request.dtypes,
              "fp64, fp32, bf16, fp16 or fixture, the dtype of the file (default)", "NAME,...");
    add_arithmetic(app, request.arithmetic, "How variants compute (kda-check list arithmetic)");
    const auto one = [&app](const char* name, auto& target, const char* text, const char* value) {
      return app.add_option(name, target, text)
          ->option_text(value)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    };
    one("--against", request.against, "oracle (default) or the name of an expected group", "NAME");
    add_names(app, "--tensor", request.tensors,
              "o (default), or gradients with tokens: dq dk dv dg dbeta, followed from both ends",
              "NAME,...");
    app.add_flag("--backward", request.backward, "All gradients with tokens, of problems with do or dht");
    one("--window", window, "Tokens to a window (default: the chunk size)", "N")
        ->check(CLI::Range(1, 1 << 20));
    add_requirements(app, required);
    add_chunk_size(app, chunk_size);
    one("--oracle", oracle, "dd: double-double (default); fp64: faster", "KIND")
        ->check(CLI::IsMember({"dd", "fp64"}));
    app.add_option_function<std::vector<std::string>>(
           "--limit",
           [this](const std::vector<std::string>& texts) {
             for (const std::string& text : texts) request.limits.push_back(compare::parse_limit(text));
           },
           "Override the limit of rms_ratio, scaled_ulp or max_abs; repeatable")
        ->expected(1)
        ->option_text("METRIC=VALUE")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    one("--json", json_path, "Write JSON to PATH, or to standard output instead of the text", "[PATH]")
        ->expected(0, 1)
        ->default_str("-");
    add_threads(app, request.threads);
    add_memory_limit(app, request.read_limits.memory_budget);
  }

  void finish() {
    if (window > 0) request.window = window;
    if (chunk_size > 0) request.chunk_size = chunk_size;
    if (oracle == "fp64") request.oracle = kda::OraclePrecision::fp64;
    if (request.targets.empty())
      throw Error(ErrorKind::usage, "grow: no fixture given", {},
                  "kda-check grow FILE.h5, or kda-check grow slow_alpha");
  }
};

}  // namespace

int grow_main(const Words& words) {
  GrowCommand command;
  CLI::App app;
  command.add_options(app);
  if (const auto done = parse(app, words)) return *done;
  command.finish();
  session::check_requirements(command.required);
  return measure(
      words, command.json_path, command.request.targets,
      [&](const session::Log& log) {
        report::GrowthResult result = session::grow(command.request, log);
        session::add_missed_requirements(command.required, result);
        return result;
      },
      [](const report::GrowthResult& result) {
        report::WriteOptions options;
        options.unicode = wants_unicode();
        return report::write_growth_text(result, options);
      },
      report::write_growth_json);
}

}  // namespace kda_check::cli

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/command.hpp"

namespace kda_check::cli {

namespace {

constexpr char run_footer[] =
    R"(Targets are fixtures, folders of them, regimes (kda-check list regimes), or @suites (kda-check list suites). Your
selection narrows each line of a suite: of what the line names, only what you select is run. A line that names nothing
takes your selection. Your other options replace those of the line; --limit does so metric by metric.

Examples:
  kda-check run mine.h5                              your recorded output and every variant, against the truth
  kda-check run mine.h5 --variant none               only what is recorded
  kda-check run fla.h5 --dtype fp64,fp32 -v          in two dtypes, with all rows and metrics
  kda-check run fla.h5 --against fla_chunk           against one recorded output only
  kda-check run fla.h5 --against oracle,replay       GPU variants also bit for bit against their CPU replay
  kda-check run fla.h5 --limit scaled_ulp=8 --json   a limit of your own; JSON on standard output
  kda-check run corr_keys:rho=0.99,T=512             a problem that kda-check makes, hard for some kernels
  kda-check run fla.h5 --invariants                  also: does it repeat, split, look ahead ...?
  kda-check run fla.h5 --external './mine {in} {out}'     your kernel, run beside ours
  kda-check run @smoke                               what came with the program; @hazards: every regime
  kda-check run @ci --dry-run                        what it would do, and how long it may take
  kda-check run @ci --shard 2/4 --json part2.json    one of four parts, for four machines; then kda-check merge

Exit codes: 0 all passed; 1 something failed, was inconclusive or is missing; 2 usage; 3 a file is missing or
malformed; 4 something could not run or be written; 70 a bug here; 128 + n ended by signal n. The highest that
applies wins.
)";

struct RunOptions {
  Planned planned;
  bool has_external = false;
  plan::ExternalProgram external;
  std::string incident;

  void add_to(Parser& parser) {
    plan::Request& request = planned.request;
    add_targets(parser, request, "Fixtures, folders, regimes, @suites");
    add_selection(parser, request);
    parser.names(
        "--against", "NAME,...",
        [&](Names names) {
          if (names == Names{"none"}) names.clear();
          request.selection.against = std::move(names);
        },
        "oracle, names of recorded outputs, all of these (default: all), or none. replay: compare each GPU\n"
        "variant with its replay on the CPU, bit for bit");
    parser.choice(
        "--oracle", "KIND", plan::oracle_words, request.oracle,
        "dd: double-double; fp64: faster, with a bound of its error; none: only against recorded outputs.\n"
        "Without this option large problems take fp64 if that is exact enough");
    add_oracle_device(parser, request);
    add_external(parser);
    add_judging(parser, request.judging);
    parser.choice(
        "--test", "WHEN", {"on", "off"}, [&](const std::string& when) { request.test = when == "on"; },
        "on (default): also compare errors, region by region, with those of correct kernels that\n"
        "kda-check emulates on the same problem (docs/verdicts.md); off: only derived limits decide");
    parser.figure("--floor", request.judging.floor,
                  "Say INCONCLUSIVE if an error of this share would be missed (default 0.05)");
    parser.choice(
        "--undecided", "VERDICT", {"pass", "fail"},
        [&](const std::string& verdict) {
          request.judging.undecided = verdict == "pass" ? judge::Verdict::pass : judge::Verdict::fail;
        },
        "Report INCONCLUSIVE tensors as pass or fail");
    parser.flag("--as-declared", request.judging.as_declared,
                "Fail a recorded output that does not compute as its name says (docs/verdicts.md); without\n"
                "this option a note says so");
    parser.group("What else is tried");
    parser.flag(
        "--stages", request.stages,
        "Compare the intermediates of the chunk form, ours and those in a file, with the truth; name\n"
        "the first one that is wrong");
    parser.optional_value(
        "--invariants", "[=NAME,...]", "all", true,
        [&](const std::string& given) { request.invariants = given == "all" ? Names{} : split_names(given); },
        "Also test what must hold for any inputs: repeat, causality, split, batch, heads ...\n"
        "(docs/serving.md)");
    add_expectation(parser);
    add_gate(parser);
    add_output_options(parser, planned.output);
    add_resources(parser, planned.resources);
    parser.choice(
        "--segments", "WHO", {"mpi", "nccl"},
        [&](const std::string& who) { planned.shared_by = who == "mpi" ? SharedBy::mpi : SharedBy::nccl; },
        "Cut every sequence into P parts for forward passes; the bits are those of --arithmetic\n"
        "segments=tree:P (docs/serving.md). mpi: the P processes of mpirun -n P compute them (chunk);\n"
        "nccl: the P GPUs of this host do (gpu-chunk)");
    parser.number(
        "--rank-timeout", 1, 86400, [&](std::size_t seconds) { planned.rank_timeout = seconds; },
        "A process of mpirun that is silent for so many seconds ends the run (default: 60)");
  }

  void add_external(Parser& parser) {
    parser.group("Your kernel as a program");
    parser.value(
        "--external", "COMMAND",
        [&](const std::string& command) { external.command = command, has_external = true; },
        "A program of yours that runs beside the variants: it reads the fixture {in} and writes\n"
        "the fixture {out} (docs/file-format.md)");
    parser.value("--external-name", "NAME", external.name, "What reports call it (default: external)");
    parser.number(
        "--external-timeout", 1, 86400,
        [&](std::size_t seconds) { external.seconds = static_cast<int>(seconds); },
        "Seconds it may take for one problem (default: 600)");
  }

  void add_expectation(Parser& parser) {
    parser.value(
        "--expect", "VERDICT[:CAUSE]",
        [&](const std::string& text) {
          const std::size_t colon = std::min(text.find(':'), text.size());
          for (const auto verdict :
               {judge::Verdict::pass, judge::Verdict::fail, judge::Verdict::inconclusive})
            if (judge::name_of(verdict) == text.substr(0, colon))
              planned.request.expectation = {verdict, text.substr(std::min(colon + 1, text.size())), {}};
          if (!planned.request.expectation)
            throw Error(ErrorKind::usage, fmt::format("--expect {}", text), {}, "pass, fail, inconclusive");
        },
        "Pass if the verdict is this one and its reason has CAUSE (docs/incidents.md). Only variants that\n"
        "you name run");
    parser.value("--incident", "THREAD,...", incident, "Where the bug was reported: sglang#30860");
  }

  void add_gate(Parser& parser) {
    parser.group("In CI");
    add_requirements(parser, planned.request);
    parser.value(
        "--tolerance", "FILE.toml",
        [&](const std::string& path) {
          if (path.find_first_not_of("0123456789.eE+-") == std::string::npos)
            throw Error(ErrorKind::usage, fmt::format("--tolerance {}: wanted a file of rules", path), {},
                        fmt::format("a number is --rtol {} --atol X, or --limit rms_ratio={}", path, path));
          planned.request.tolerance = path;
        },
        "A file of rules that replace derived limits, each with its reason; --limit overrides rules\n"
        "(docs/verdicts.md; cases/tolerances.toml)");
    parser.value("--baseline", "FILE.tsv", planned.baseline,
                 "Fail what is worse than in this table of earlier results (docs/ci.md)");
    parser.optional_value(
        "--update-baseline", "[=better|worse]", "better", true,
        [&](const std::string& how) {
          if (how != "better" && how != "worse")
            throw Error(ErrorKind::usage, fmt::format("--update-baseline={}", how), {},
                        suggest(how, {"better", "worse"}));
          planned.update = how;
        },
        "Write better and new results into the baseline; =worse: also worse ones");
    parser.value(
        "--shard", "I/N|auto", [&](const std::string& text) { planned.shard = plan::shard_named(text); },
        "Run part I of N; auto: Slurm, MPI, GitLab or GitHub say which part (docs/ci.md)");
    add_dry_run(parser, planned);
  }

  void finish() {
    check_judging(planned.request.judging);
    if (has_external)
      planned.request.external = external;
    else if (external.name != plan::ExternalProgram{}.name ||
             external.seconds != plan::ExternalProgram{}.seconds)
      throw Error(ErrorKind::usage, "--external-name and --external-timeout: of which program?", {},
                  "--external COMMAND");
    if (auto& written = planned.request.expectation) {
      written->incident = incident;
      if (!planned.request.selection.variants) planned.request.selection.variants.emplace();
    } else if (!incident.empty()) {
      throw Error(ErrorKind::usage, "--incident without --expect", {}, "--expect fail:CAUSE");
    }
    if (planned.rank_timeout && planned.shared_by != SharedBy::mpi)
      throw Error(ErrorKind::usage, "--rank-timeout: of which ranks?", {}, "--segments mpi");
  }
};

}  // namespace

plan::Request parse_run_line(const Words& words) {
  RunOptions options;
  Parser parser("run", "", "");
  options.add_to(parser);
  Words all{"run"};
  all.insert(all.end(), words.begin(), words.end());
  if (!parser.parse(all)) throw Error(ErrorKind::input, "a line of a suite asks for help");
  options.finish();
  const Planned& own = options.planned;
  if (!own.baseline.empty() || !own.update.empty())
    throw Error(ErrorKind::input, "the line names a baseline", {},
                "one run has one: kda-check run @suite --baseline FILE");
  if (own.output.is_set())
    throw Error(ErrorKind::input, "the line has an option about reports", {},
                "reports are chosen on the command line: kda-check run @suite --json out.json");
  if (!own.shard.is_whole() || own.dry_run || own.resources.is_set || own.shared_by != SharedBy::nobody)
    throw Error(ErrorKind::input,
                "a line of a suite has no --shard, --dry-run, --threads, --memory-limit and --segments", {},
                "they are for the command line: kda-check run @suite --shard 2/4");
  return own.request;
}

int run_main(const Words& words) {
  RunOptions options;
  Parser parser("run", "Run variants on fixtures and compare them, and the recorded outputs, with the truth",
                run_footer);
  options.add_to(parser);
  if (!parser.parse(words)) return 0;
  options.finish();
  return run_planned(words, std::move(options.planned));
}

}  // namespace kda_check::cli

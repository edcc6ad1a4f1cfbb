#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/gate_options.hpp"
#include "cli/judging_options.hpp"
#include "cli/shard.hpp"
#include "cli/suite.hpp"
#include "session/requirements.hpp"
#include "session/run.hpp"
#include "session/sources.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "Targets are fixture files, directories of them, regimes (kda-check list regimes), or @suites (kda-check "
    "list suites).\n"
    "An option given here replaces the same option of a suite's lines, lists included; --limit does so "
    "metric by\n"
    "metric.\n"
    "\n"
    "Examples:\n"
    "  kda-check run fla.h5                               every variant, in the dtype of the file\n"
    "  kda-check run fla.h5 --dtype fp64,fp32 -v          in two dtypes, with all metrics\n"
    "  kda-check run fla.h5 --against fla_chunk           against one recorded answer only\n"
    "  kda-check run mine.h5 --against oracle --probe     which mis-reading explains the failure?\n"
    "  kda-check run fla.h5 --against oracle,replay       GPU variants also bit for bit against their CPU "
    "replay\n"
    "  kda-check run fla.h5 --limit scaled_ulp=8 --json   a limit of your own; JSON on standard output\n"
    "  kda-check run corr_keys:rho=0.99,T=512             a problem made here on which formulations fail\n"
    "  kda-check run fla.h5 --invariants                  also: does it repeat, split, look ahead ...?\n"
    "  kda-check run fla.h5 --external './mine {in} {out}'     your kernel, run beside ours\n"
    "  kda-check run @smoke                               what came with the program; @hazards: every "
    "regime\n"
    "  kda-check run @ci --shard 2/4 --json part2.json    one of four parts, for four machines\n"
    "\n"
    "Exit codes: 0 all passed; 1 something failed or was inconclusive; 2 usage; 3 a file is missing or "
    "malformed;\n"
    "4 something could not run or be written; 70 a bug here. The highest that applies wins.\n";

struct RunCommand {
  session::RunRequest request;
  std::vector<std::string> required;
  OutputOptions output;
  GateOptions gate;
  session::ExternalProgram external;
  Shard shard;
  std::string oracle = "dd";
  std::size_t chunk_size = 0;

  void add_options(CLI::App& app) {
    prepare(app, "run",
            "Run variants on fixtures and compare them with the oracle and with the recorded answers");
    app.footer(footer);
    app.add_option("targets", request.fixtures, "Fixtures, directories, regimes, @suites")
        ->option_text("TARGET...");
    add_names(app, "--variant", request.variants, "Variants to run (default: all; kda-check list)",
              "NAME,...");
    add_names(app, "--dtype", request.dtypes,
              "fp64, fp32, bf16, fp16 or fixture, the dtype of the file (default)", "NAME,...");
    add_arithmetic(app, request.arithmetic,
                   "How variants compute, e.g. contraction=separate,decay=pair (kda-check list arithmetic)");
    add_names(app, "--against", request.against,
              "oracle, names of expected groups, all (these; the default), replay: GPU variants against the "
              "same\non the CPU, bit for bit",
              "NAME,...");
    add_requirements(app, required);
    add_chunk_size(app, chunk_size);
    app.add_option(
           "--oracle", oracle,
           "dd: double-double (default); fp64: faster; none: compare variants with recorded answers only")
        ->check(CLI::IsMember({"dd", "fp64", "none"}))
        ->option_text("KIND")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_flag_callback(
        "--no-backward", [&] { request.backward = false; },
        "compare no gradients, also where a fixture has do or dht");
    app.add_flag("--stages", request.stages,
                 "Compare the intermediates of the chunk form (and those a file holds) with the truth, and\n"
                 "name the first that leaves it");
    app.add_flag(
        "--probe", request.probe,
        "For every failure against the oracle, try the usual mis-readings (exp2 for exp, a transposed\n"
        "state ...) and name the one that explains it");
    app.add_flag("--invariants", request.invariants,
                 "Also try what must hold whatever the inputs: repeat, causality, split, batch, heads ...\n"
                 "(docs/invariants.md)");
    app.add_option(
           "--external", external.command,
           "A program of yours that answers beside the variants: it reads the fixture {in} and writes\n"
           "the fixture {out} (docs/external.md)")
        ->option_text("COMMAND")
        ->check(
            CLI::Validator([](std::string& text) { return text.empty() ? "no command" : std::string(); }, ""))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_option("--external-name", external.name, "What reports call it (default: external)")
        ->option_text("NAME")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_option("--external-timeout", external.seconds,
                   "Seconds it may take for one problem (default: 600)")
        ->option_text("SECONDS")
        ->check(CLI::Range(1, 86400))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_judging_options(app, request.judging);
    add_gate_options(app, gate);
    add_output_options(app, output);
    add_shard(app, shard);
    add_threads(app, request.threads);
    add_memory_limit(app, request.limits.memory_budget);
  }

  void finish() {
    if (chunk_size > 0) request.chunk_size = chunk_size;
    if (oracle == "fp64") request.oracle = kda::OraclePrecision::fp64;
    if (oracle == "none") request.oracle.reset();
    if (!external.command.empty()) request.external = external;
  }

  /// Less is run or compared than the targets hold.
  bool narrowed() const {
    return !request.variants.empty() || !request.dtypes.empty() || !request.arithmetic.empty() ||
           !request.against.empty() || !request.judging.tensors.empty() || request.chunk_size.has_value() ||
           !request.oracle.has_value() || !request.backward || !shard.is_whole();
  }
};

bool is_suite(const std::string& target) { return target.starts_with("@"); }

/// `all`: the words of the line, or those with more behind them.
RunCommand parsed_line(const Suite& suite, const SuiteLine& line, const Words& all) {
  Words words{"run"};
  words.insert(words.end(), all.begin(), all.end());
  RunCommand command;
  CLI::App app;
  command.add_options(app);
  try {
    parse(app, words);
  } catch (const Error& error) {
    throw error.in(suite.place(line));
  }
  command.finish();
  return command;
}

/// A suite says what is run, itself; one report covers all of it.
void check_line(const Suite& suite, const SuiteLine& line) {
  const RunCommand parsed = parsed_line(suite, line, line.words);
  for (const std::string& target : parsed.request.fixtures)
    if (is_suite(target))
      throw Error(ErrorKind::usage, fmt::format("'{}' inside a suite: suites do not nest", target),
                  suite.place(line), "name all suites on the command line");
  if (parsed.gate.has_baseline())
    throw Error(ErrorKind::input, fmt::format("the line '{}' names a baseline", join(line.words, " ")),
                suite.place(line), "one run has one: kda-check run @suite --baseline FILE");
  if (parsed.output.is_set())
    throw Error(
        ErrorKind::input, fmt::format("the line '{}' has an option about reports", join(line.words, " ")),
        suite.place(line), "reports are chosen on the command line: kda-check run @suite --json out.json");
  if (!parsed.shard.is_whole())
    throw Error(ErrorKind::input, "a line of a suite has no --shard", suite.place(line),
                fmt::format("on the command line: kda-check run @suite --shard {}", parsed.shard.text()));
}

/// Lists given on the command line replace those of a line, as its single values do. Limits are replaced
/// metric by metric.
void command_line_wins(const session::RunRequest& given, session::RunRequest& of_line) {
  const auto replace = [](const auto& list, auto& target) {
    if (!list.empty()) target = list;
  };
  replace(given.variants, of_line.variants);
  replace(given.dtypes, of_line.dtypes);
  replace(given.arithmetic, of_line.arithmetic);
  replace(given.against, of_line.against);
  replace(given.judging.tensors, of_line.judging.tensors);
}

struct Requests {
  std::vector<session::RunRequest> list;
  std::vector<std::string> required;  ///< of the command line and of all lines together
  std::size_t targets = 0;            ///< with --shard: of all shards
};

/// The words of a line that are no targets of it.
Words options_among(const Words& words, const std::vector<std::string>& targets) {
  Words options;
  std::copy_if(words.begin(), words.end(), std::back_inserter(options), [&](const std::string& word) {
    return std::find(targets.begin(), targets.end(), word) == targets.end();
  });
  return options;
}

/// The requests of a command line: one for its files, one for each line of its suites, with the options of
/// the command line over those of the line.
Requests requests_of(const RunCommand& command, const Words& words, TolerancesRead& tolerances) {
  Requests requests{{}, command.required};
  session::RunRequest files = command.request;
  files.judging.tolerances = tolerances.read(command.gate.tolerance_path);
  std::erase_if(files.fixtures, is_suite);
  const auto keep = [&](std::vector<std::string>& targets, const Words& line, const std::string& directory) {
    if (!command.shard.is_whole())
      targets = targets_in(command.shard, targets, line, directory, requests.targets);
    return !targets.empty();
  };
  if (keep(files.fixtures, {}, "")) requests.list.push_back(files);
  const Words options = options_among(words, command.request.fixtures);
  for (const std::string& target : command.request.fixtures) {
    if (!is_suite(target)) continue;
    const Suite suite = load_suite(target);
    for (const SuiteLine& line : suite.lines) {
      check_line(suite, line);
      Words all = line.words;
      all.insert(all.end(), options.begin() + 1, options.end());
      RunCommand of_line = parsed_line(suite, line, all);
      command_line_wins(command.request, of_line.request);
      of_line.request.judging.tolerances =
          tolerances.read(command.gate.tolerance_path.empty() ? suite.path_of(of_line.gate.tolerance_path)
                                                              : command.gate.tolerance_path);
      requests.required.insert(requests.required.end(), of_line.required.begin(), of_line.required.end());
      if (!keep(of_line.request.fixtures, options_among(line.words, of_line.request.fixtures),
                suite.directory))
        continue;
      for (std::string& fixture : of_line.request.fixtures)
        if (!session::is_regime(fixture)) fixture = suite.path_of(fixture);
      requests.list.push_back(of_line.request);
    }
  }
  if (requests.list.empty() && requests.targets == 0)
    throw Error(ErrorKind::usage, "run: no fixture given", {},
                "kda-check run FILE.h5, kda-check run corr_keys, or kda-check run @smoke");
  return requests;
}

void add_notes(report::FixtureResult& fixture, const std::vector<std::string>& notes) {
  for (const std::string& note : notes)
    if (std::find(fixture.notes.begin(), fixture.notes.end(), note) == fixture.notes.end())
      fixture.notes.push_back(note);
}

void append(report::Result& all, report::Result part) {
  all.command = part.command;
  all.oracle = part.oracle;
  for (report::FixtureResult& fixture : part.fixtures) {
    const auto known = std::find_if(all.fixtures.begin(), all.fixtures.end(),
                                    [&](const auto& other) { return other.path == fixture.path; });
    if (known == all.fixtures.end()) {
      all.fixtures.push_back(std::move(fixture));
    } else {
      add_notes(*known, fixture.notes);
    }
  }
  std::move(part.cases.begin(), part.cases.end(), std::back_inserter(all.cases));
  std::move(part.stages.begin(), part.stages.end(), std::back_inserter(all.stages));
  std::move(part.errors.begin(), part.errors.end(), std::back_inserter(all.errors));
}

}  // namespace

std::vector<session::SuiteLine> suite_requests(const std::string& target) {
  RunCommand command;
  command.request.fixtures = {target};
  TolerancesRead tolerances;
  const Requests requests = requests_of(command, {"run", target}, tolerances);
  const Suite suite = load_suite(target);
  std::vector<session::SuiteLine> lines;
  for (std::size_t i = 0; i < requests.list.size(); ++i)
    lines.push_back({fmt::format("{}:{}", target, suite.lines[i].number), requests.list[i]});
  return lines;
}

int run_main(const Words& words) {
  RunCommand command;
  CLI::App app;
  command.add_options(app);
  if (const auto done = parse(app, words)) return *done;
  command.finish();
  TolerancesRead tolerances;
  Requests requests = requests_of(command, words, tolerances);
  session::check_requirements(requests.required);
  std::vector<std::string> inputs;
  for (const session::RunRequest& request : requests.list)
    inputs.insert(inputs.end(), request.fixtures.begin(), request.fixtures.end());
  std::optional<session::BaselineGate> baseline = baseline_gate(command.gate, command.narrowed(), inputs);
  Outputs outputs(command.output, inputs);
  for (session::RunRequest& request : requests.list) request.judging.profile = outputs.draw();

  Progress progress;
  const session::Log log = log_through(progress);
  report::Result result;
  result.command = "run";
  result.oracle = "none";
  for (const session::RunRequest& request : requests.list) append(result, session::run(request, log));
  if (requests.list.empty()) {
    result.nothing_to_do = fmt::format("nothing to do: shard {} has none of the {} targets",
                                       command.shard.text(), requests.targets);
  } else {
    session::add_missed_requirements(requests.required, result);
  }
  if (!command.narrowed()) tolerances.add_unused(result.errors);
  result.argv = words;
  progress.clear();
  if (baseline) print_lines(baseline->judge(result));
  print_errors(result.errors);
  outputs.write(result);
  if (baseline) print_lines(baseline->update(result));
  return result.exit_code();
}

}  // namespace kda_check::cli

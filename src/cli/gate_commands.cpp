// diff, merge, selftest: reports and files held against one another.
#include <fmt/format.h>

#include "cli/command.hpp"
#include "engine/diff.hpp"
#include "engine/merge.hpp"
#include "selftest/selftest.hpp"

namespace kda_check::cli {

namespace {

constexpr char diff_footer[] =
    R"(BEFORE and AFTER are fixtures, FILE:GROUP for one recorded output, or two folders whose files have the same names. AFTER
is judged, BEFORE is what it is compared with. Without limits any different bit or element type fails; if you give limits,
they decide.

Examples:
  kda-check diff before.h5 after.h5                            bit for bit
  kda-check diff before/ after/                                file by file
  kda-check diff fla.h5:torch_fp64 fla.h5:fla_chunk --limit rms_ratio=5e-3
  kda-check diff a.h5 b.h5 --tensor expected/fla_chunk/o --max-ulp 2
)";

constexpr char merge_footer[] =
    R"(The reports are those that the shards of one run wrote with --json (docs/ci.md). merge checks that every part of
the run is there exactly once; its exit code is that of the whole run.

Examples:
  kda-check merge part*.json                                     the text report of all of them
  kda-check merge part*.json -q --report html=all.html --report junit=all.xml

Exit codes: those of the run; 3 when the reports are not the shards of one run, or one is missing.
)";

constexpr char selftest_footer[] =
    R"(Wrong kernels (docs/developing.md) are judged as variants are: against the oracle and under the invariants. Each must
fail a line of @ci. On one problem each fault must fail at twice the share that `power` says is seen there, and must pass at
half that share. Every variant that runs here must pass @ci, on one thread and on two. If you give names, only those wrong
kernels are tried, and the variants on that one problem.

Exit codes: 0 all caught, nothing else failed; 1 one was missed, or a false alarm.
)";

}  // namespace

int diff_main(const Words& words) {
  engine::DiffRequest request;
  OutputOptions output;
  ResourceOptions resources;
  plan::Selection selection;
  Parser parser("diff", "Compare the tensors of two files, or of two recorded outputs; nothing is run",
                diff_footer);
  parser.positional(request.reference, "BEFORE", "What AFTER is compared with: FILE, FILE:GROUP or a folder");
  parser.positional(request.got, "AFTER", "What is judged");
  parser.group("What is selected");
  add_tensors(parser, selection);
  add_judging(parser, request.judging);
  add_output_options(parser, output);
  add_resources(parser, resources);
  if (!parser.parse(words)) return 0;
  check_judging(request.judging);
  request.tensors = selection.tensors.value_or(Names{});
  request.limits = resources.limits, request.threads = resources.threads;
  return tell(words, output, {request.got, request.reference},
              [&](Outputs& outputs, Progress& progress, report::Document& document) {
                request.draw = outputs.draw();
                engine::diff(
                    request, document, [&](const std::string& text) { progress.warn(text); },
                    [&](const std::string& text) { progress.show(text); });
              });
}

int merge_main(const Words& words) {
  Names paths;
  OutputOptions output;
  Parser parser("merge", "Join the reports of the shards of one run", merge_footer);
  parser.positionals(paths, "REPORT...", "JSON reports of all shards");
  add_output_options(parser, output);
  if (!parser.parse(words)) return 0;
  return tell(words, output, paths,
              [&](Outputs&, Progress&, report::Document& document) { document = engine::merged(paths); });
}

int selftest_main(const Words& words) {
  OutputOptions output;
  ResourceOptions resources;
  Parser parser("selftest", "Prove that wrong kernels are caught and healthy ones pass", selftest_footer);
  bool production = false;
  Names mutants;
  parser.positionals(mutants, "NAME...", "These wrong kernels alone (docs/developing.md)");
  parser.flag("--production", production,
              "Only try the faults of `power`, on a problem as large as in production, without @ci");
  add_output_options(parser, output);
  add_resources(parser, resources);
  if (!parser.parse(words)) return 0;
  return tell(words, output, {}, [&](Outputs&, Progress& progress, report::Document& document) {
    selftest::SelftestRequest request;
    request.resources = {resources.threads, resources.limits, false,
                         [&](const std::string& text) { progress.warn(text); },
                         [&](const std::string& text) { progress.show(text); }};
    request.suite = "@ci", request.production = production;
    request.mutants = mutants, request.variants_over_suite = mutants.empty();
    request.parse_line = parse_run_line;
    selftest::selftest(request, document);
  });
}

}  // namespace kda_check::cli

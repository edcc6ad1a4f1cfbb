#include <fmt/format.h>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/judging_options.hpp"
#include "session/diff.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "A and B are fixture files, or FILE:GROUP for one group of expected answers; B is what is expected.\n"
    "Without limits every difference fails; a limit replaces that.\n"
    "\n"
    "Examples:\n"
    "  kda-check diff before.h5 after.h5                            bit for bit\n"
    "  kda-check diff fla.h5:fla_chunk fla.h5:torch_fp64 --limit rms_ratio=5e-3\n"
    "  kda-check diff a.h5 b.h5 --tensor expected/fla_chunk/o --max-ulp 2\n";

}  // namespace

int diff_main(const Words& words) {
  session::DiffRequest request;
  OutputOptions output;
  CLI::App app;
  prepare(app, "diff",
          "Compare the tensors of two files, or of two groups of expected answers; nothing is run");
  app.footer(footer);
  app.add_option("A", request.got, "What is judged")->required()->option_text("FILE[:GROUP]");
  app.add_option("B", request.expected, "What is expected")->required()->option_text("FILE[:GROUP]");
  add_judging_options(app, request.judging);
  add_output_options(app, output);
  add_threads(app, request.threads);
  add_memory_limit(app, request.limits.memory_budget);
  if (const auto done = parse(app, words)) return *done;
  Outputs outputs(output, {request.got, request.expected});
  request.judging.profile = outputs.draw();
  Progress progress;
  const session::Log log = log_through(progress);
  report::Result result;
  try {
    result = session::diff(request, log);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
    result.command = "diff";
    result.oracle = "none";
    result.errors.push_back({error.what(), exit_code(error.kind())});
  }
  result.argv = words;
  progress.clear();
  print_errors(result.errors);
  outputs.write(result);
  return result.exit_code();
}

}  // namespace kda_check::cli

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "session/history.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "The reports are those of kda-check run --json FILE, the oldest first. A row is worse by the rule of a\n"
    "baseline (docs/baseline.md), when it is gone, or when its verdict was pass and no longer is.\n"
    "\n"
    "Examples:\n"
    "  kda-check history main.json branch.json            what a branch changed\n"
    "  kda-check history mon.json tue.json wed.json --all every number of three commits\n"
    "\n"
    "Exit codes: 0 nothing is worse in the last than in the first; 1 something is; 2 usage; 3 a report is\n"
    "missing or malformed; 70 a bug here.\n";

}  // namespace

int history_main(const Words& words) {
  session::HistoryRequest request;
  CLI::App app;
  prepare(app, "history", "Compare the JSON reports of several commits, number by number");
  app.footer(footer);
  app.add_option("reports", request.paths, "JSON reports of run, the oldest first")
      ->option_text("A.json B.json ...");
  app.add_flag("--all", request.all, "Rows that did not change too");
  if (const auto done = parse(app, words)) return *done;
  const session::HistoryResult result = session::history(request);
  write_stdout(session::history_text(result));
  return result.exit_code();
}

}  // namespace kda_check::cli

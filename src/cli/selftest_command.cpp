#include "cli/commands.hpp"
#include "cli/judging_options.hpp"
#include "cli/suite.hpp"
#include "session/selftest.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "Wrong kernels (docs/selftest.md) are judged as variants are: against the oracle and under the "
    "invariants. Each "
    "must be\n"
    "caught on one problem and by the lines of @ci, and every variant that can run here must pass both, @ci "
    "on "
    "one\n"
    "thread and on two.\n"
    "\n"
    "Exit codes: 0 all caught, nothing else failed; 1 one was missed, or a false alarm.\n";

}  // namespace

int selftest_main(const Words& words) {
  CLI::App app;
  int threads = 1;
  std::string json_path;
  prepare(app, "selftest", "Can the gate fail? Wrong kernels must be caught, healthy ones must pass");
  app.footer(footer);
  add_threads(app, threads);
  app.add_option("--json", json_path, "Also as JSON; - for standard output, instead of the text")
      ->option_text("PATH");
  if (const auto done = parse(app, words)) return *done;
  return measure(
      words, json_path, {},
      [&](const session::Log& log) {
        return session::selftest({threads, "@ci", suite_requests("@ci")}, log);
      },
      session::selftest_text, session::selftest_json);
}

}  // namespace kda_check::cli

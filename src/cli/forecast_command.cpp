#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "session/forecast.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "The target is a fixture file or a regime (kda-check list regimes).\n"
    "Nothing is run: gates, keys and beta alone decide. docs/forecast.md says how to read it.\n"
    "\n"
    "Examples:\n"
    "  kda-check forecast fla.h5                                    what chunk would do by default\n"
    "  kda-check forecast fla.h5 --arithmetic decay=factored:16     exit code 1 if that breaks\n"
    "  kda-check forecast fla.h5 --arithmetic flash-kda --chunk-size 16\n"
    "  kda-check forecast corr_keys:rho=0.99 --dtype fp16           a problem made here\n"
    "\n"
    "Exit codes: 0 the selected formulation is safe; 1 it is forecast to overflow or to be wrong; 2 usage; 3 "
    "the "
    "file is\n"
    "missing or malformed; 4 the report could not be written; 70 a bug here.\n";

}  // namespace

int forecast_main(const Words& words) {
  session::ForecastRequest request;
  std::size_t chunk_size = 0;
  bool verbose = false, json = false;
  CLI::App app;
  prepare(app, "forecast", "What the inputs say about each formulation, before any kernel runs");
  app.footer(footer);
  app.add_option("file", request.fixture, "A fixture or a regime")->required()->option_text("TARGET");
  app.add_option("--dtype", request.dtype,
                 "fp64, fp32, bf16, fp16 or fixture, the dtype of the file (default)")
      ->option_text("NAME")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_arithmetic(app, request.arithmetic, "As for run (default: that of chunk)");
  add_chunk_size(app, chunk_size);
  app.add_flag("-v,--verbose", verbose, "Every head");
  app.add_flag("--json", json, "JSON instead of the text (docs/json.md)");
  add_threads(app, request.threads);
  add_memory_limit(app, request.limits.memory_budget);
  if (const auto done = parse(app, words)) return *done;
  if (chunk_size > 0) request.chunk_size = chunk_size;
  Progress progress;
  const session::ForecastResult result = session::forecast(request, log_through(progress));
  progress.clear();
  write_stdout(
      json ? session::forecast_json(result, words)
           : session::forecast_text(result, verbose ? report::Detail::verbose : report::Detail::normal));
  return result.exit_code();
}

}  // namespace kda_check::cli

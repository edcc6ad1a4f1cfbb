#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "session/bench.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "us is microseconds of wall time per token and head. Gflop/s counts the 7 K V flops of the recurrence (a "
    "product,\n"
    "three multiply-adds per state element) and 20 K V backwards (replayed: two and nine), whatever the "
    "variant\nreally does; % of peak divides by the "
    "fused\n"
    "multiply-adds this machine did before or after the same repeat, whichever is faster; x recurrent is the "
    "time over that of recurrent, forwards.\n"
    "\n"
    "GPU variants are timed by the clock of the device, kernels alone: ms of one run (median), how far the "
    "fastest "
    "and the\n"
    "slowest are apart, and the floor, the time it takes to read every input and write o and final_state "
    "once at "
    "the speed\n"
    "of a copy measured in the same run.\n"
    "\n"
    "Examples:\n"
    "  kda-check bench\n"
    "  kda-check bench --variant recurrent,chunk --backward\n"
    "  kda-check bench --variant gpu-chunk,gpu-recurrent --dtype fp32,bf16 -T 8192 -H 64\n"
    "  kda-check bench --variant recurrent,chunk --arithmetic decay=anchor-first:16 --dtype fp32,bf16 -T "
    "4096\n";

}  // namespace

int bench_main(const Words& words) {
  session::BenchRequest request;
  bool json = false;
  CLI::App app;
  prepare(app, "bench", "Time the variants and the oracle beside the machine's own multiply-add speed");
  app.footer(footer);
  add_names(app, "--variant", request.variants, "Variants, or oracle (default: all of them)", "NAME,...");
  add_names(app, "--dtype", request.dtypes, "fp64, fp32, bf16, fp16 (default: fp32)", "NAME,...");
  add_arithmetic(app, request.arithmetic, "As for run");
  const auto extent = [&app](const char* flag, std::size_t& target, const char* text) {
    app.add_option(flag, target, fmt::format("{} (default {})", text, target))
        ->check(CLI::Range(1, 1 << 20))
        ->option_text("N");
  };
  extent("-B", request.B, "Batch");
  extent("-T", request.T, "Tokens");
  app.add_option("-H", request.H, "Heads (default: as many as threads, at least 4)")
      ->check(CLI::Range(1, 1 << 20))
      ->option_text("N");
  extent("-K", request.K, "Key width");
  extent("-V", request.V, "Value width");
  extent("--chunk-size", request.chunk_size, "Rows of a chunk");
  app.add_option("--repeats", request.repeats, "Repeats; medians are printed (default 7)")
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  add_threads(app, request.threads);
  app.add_flag("--backward", request.backward, "Time the backward passes beside the forward ones");
  app.add_flag("--json", json, "JSON instead of the table");
  if (const auto done = parse(app, words)) return *done;
  Progress progress;
  const session::BenchResult result =
      session::bench(request, {warn, [&](const std::string& text) { progress.show(text); }});
  progress.clear();
  write_stdout(json ? session::bench_json(result) : session::bench_text(result));
  return 0;
}

}  // namespace kda_check::cli

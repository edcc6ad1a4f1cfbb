#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "session/bench.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "us is microseconds of wall time per token and head. Gflop/s counts the 7 K V flops of the recurrence (a "
    "product,\n"
    "three multiply-adds per state element), whatever the variant really does; % of peak divides by the "
    "fused\n"
    "multiply-adds this machine did before or after the same repeat, whichever is faster; x recurrent is the "
    "time over that of recurrent.\n"
    "\n"
    "Examples:\n"
    "  kda-check bench\n"
    "  kda-check bench --variant recurrent,chunk --arithmetic decay=anchor-first:16 --dtype fp32,bf16 -T "
    "4096\n";

std::string text_of(const session::BenchResult& result) {
  std::string out =
      fmt::format("{}  {} threads  kernels for {}\nFMA peak: {:.1f} Gflop/s in fp32, {:.1f} in fp64\n\n",
                  result.shape, result.threads, result.instruction_set, result.peak_fp32, result.peak_fp64);
  fmt::format_to(std::back_inserter(out), "  {:<10} {:<6} {:>9} {:>9} {:>10} {:>12}  {}\n", "variant",
                 "dtype", "us", "Gflop/s", "% of peak", "x recurrent", "arithmetic");
  for (const session::BenchRow& row : result.rows)
    fmt::format_to(std::back_inserter(out), "  {:<10} {:<6} {:>9.3f} {:>9.1f} {:>10} {:>12}  {}\n",
                   row.variant, row.dtype, row.microseconds, row.gflops,
                   row.of_peak > 0 ? fmt::format("{:.1f}", 100 * row.of_peak) : "-",
                   row.of_recurrent > 0 ? fmt::format("{:.2f}", row.of_recurrent) : "-", row.arithmetic);
  if (std::any_of(result.rows.begin(), result.rows.end(), [](const auto& row) { return row.of_peak > 1; }))
    out += "\nnote: more than 100 % of the peak: the machine was busier while the peak was measured\n";
  return out;
}

std::string json_of(const session::BenchResult& result) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const session::BenchRow& row : result.rows)
    rows.push_back({{"variant", row.variant},
                    {"dtype", row.dtype},
                    {"arithmetic", row.arithmetic},
                    {"us_per_token_and_head", row.microseconds},
                    {"gflops", row.gflops},
                    {"of_peak", row.of_peak},
                    {"of_recurrent", row.of_recurrent}});
  const nlohmann::ordered_json document = {
      {"schema_version", 1},
      {"shape", result.shape},
      {"threads", result.threads},
      {"repeats", result.repeats},
      {"instruction_set", result.instruction_set},
      {"fma_peak_gflops", {{"fp32", result.peak_fp32}, {"fp64", result.peak_fp64}}},
      {"rows", rows}};
  return document.dump(2) + "\n";
}

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
  app.add_flag("--json", json, "JSON instead of the table");
  if (const auto done = parse(app, words)) return *done;
  Progress progress;
  const session::BenchResult result =
      session::bench(request, {warn, [&](const std::string& text) { progress.show(text); }});
  progress.clear();
  write_stdout(json ? json_of(result) : text_of(result));
  return 0;
}

}  // namespace kda_check::cli

#include "bench/bench.hpp"
#include "bench/rivals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/command.hpp"
#include "cli/shared_devices.hpp"

namespace kda_check::cli {

namespace {

constexpr char bench_footer[] =
    R"(us is microseconds of wall time per token and head. Gflop/s counts the 7 K V flops of the recurrence (a product, three
multiply-adds per state element) and 20 K V backwards (replayed: two and nine), whatever the variant really does. "of peak"
divides by the fused multiply-adds that this machine did before or after the same repeat, whichever is faster. "x recurrent"
is the time over that of recurrent, forwards.

GPU variants are timed by the clock of the device, kernels alone: ms of one run (median), how far the fastest and the
slowest are apart, and the floor, the time it takes to read every input and write o and final_state once at the speed of
a copy measured in the same run.

With --against every forward output is compared with the truth: error is rms(output - truth) / rms(truth). The
page (--report html=PATH) draws error over time. Their backward passes are timed alone, as ours are, without the forward
pass before them.

A step of decoding is timed as one of 20 on the same pool: in a captured graph (ms), and launch by launch. The spread and
"x floor" are those of the graph.

Examples:
  kda-check bench
  kda-check bench --variant recurrent,chunk --backward
  kda-check bench --variant gpu-chunk,gpu-recurrent --dtype fp32,bf16 -T 8192 -H 64
  kda-check bench --variant gpu-chunk --against fla,flash-kda --layer --dtype bf16 -T 8192 -H 64 --report html=speed.html
  kda-check bench --decode 128 --variant gpu-recurrent --against fla-recurrent --dtype bf16 -H 32
  kda-check bench --variant recurrent,chunk --arithmetic decay=anchor-first:16 --dtype fp32,bf16 -T 4096
)";

}  // namespace

int bench_main(const Words& words) {
  bench::BenchRequest request;
  plan::Request& named = request.words;
  named.command = "bench";
  OutputOptions output;
  ResourceOptions resources;
  Parser parser("bench", "Time the variants and the oracle beside the machine's own multiply-add speed",
                bench_footer);
  parser.group("What is selected");
  add_variants(parser, named.selection, "Variants, or oracle (default: all of them)");
  add_dtypes(parser, named.selection);
  add_passes(parser, named.selection);
  add_arithmetic(parser, named);
  add_oracle_device(parser, named);
  bool on_devices = false;
  parser.choice(
      "--segments", "WHO", {"nccl"}, [&](const std::string&) { on_devices = true; },
      "nccl: the P GPUs of this host compute gpu-chunk together, forwards, each a part of every sequence;\n"
      "the time is that of the one that takes longest (docs/serving.md)");
  parser.group("The problem");
  const auto extent = [&](const char* flag, std::size_t& target, const char* text) {
    parser.number(
        flag, 1, 1 << 20, [&target](std::size_t value) { target = value; },
        target > 0 ? fmt::format("{} (default {})", text, target) : std::string(text));
  };
  extent("-B", request.B, "Batch");
  bool names_tokens = false;
  parser.number(
      "-T", 1, 1 << 20, [&](std::size_t value) { request.T = value, names_tokens = true; },
      fmt::format("Tokens (default {})", request.T));
  extent("-H", request.H, "Heads (default: as many as threads, at least 4)");
  extent("-K", request.K, "Key width");
  extent("-V", request.V, "Value width");
  extent("--chunk-size", request.chunk_size, "Rows of a chunk");
  extent("--sequences", request.sequences, "Packed sequences of about equal length, with -B 1");
  extent("--decode", request.decode,
         "Time a step of decoding: N sequences of one token each, states in a pool (replaces -B and -T)");
  parser.flag("--layer", request.layer,
              "A layer's problem: norms, sigmoid and a gate above -5 are the kernel's, states are [V,K]");
  parser.group("Beside whom");
  parser.names(
      "--against", "NAME,...", [&](Names names) { request.against = std::move(names); },
      "Kernels of others, run by python3 with the package kda_check: " + join(bench::rival_names()));
  parser.number(
      "--configs", 1, 1000, [&](std::size_t count) { request.configs = static_cast<int>(count); },
      "Launch configurations that a kernel of --against may try (default: all, which takes minutes)");
  parser.group("How often");
  parser.number(
      "--repeats", 1, 1000, [&](std::size_t count) { request.repeats = static_cast<int>(count); },
      "Repeats; medians are printed (default 7)");
  add_output_options(parser, output);
  add_resources(parser, resources);
  if (!parser.parse(words)) return 0;
  if (names_tokens && request.decode > 0)
    throw Error(ErrorKind::usage, "--decode has no -T", {}, "it is one token for each of as many sequences");
  request.threads = resources.threads, request.memory_budget = resources.limits.memory_budget;
  if (std::optional<Names>& names = named.selection.variants)
    request.with_oracle = std::erase(*names, "oracle") > 0;
  if (on_devices) check_shared(named, SharedBy::nccl);
  if (on_devices && named.selection.pass == kda::Pass::backward)
    throw Error(ErrorKind::usage, "--segments nccl shares forward passes alone", {}, "--no-backward");
  return tell(words, output, {}, [&](Outputs&, Progress& progress, report::Document& document) {
    request.warning = [&](const std::string& text) { progress.warn(text); };
    request.progress = [&](const std::string& text) { progress.show(text); };
    std::optional<SharedDevices> devices;
    if (on_devices) devices.emplace().add_to(request.words);
    document = bench::bench(request);
    if (devices) devices->say_costs();
  });
}

}  // namespace kda_check::cli

#include <fmt/format.h>

#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "session/capture.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "What VARIANT answers on a fixture or a regime becomes its group expected/<variant>@<device>: o, "
    "final_state and,\n"
    "of the chunk forms, all stages, in the precision they are computed in. Everything else in the file "
    "stays "
    "as it\n"
    "is; the file is replaced whole or not at all.\n"
    "\n"
    "Examples:\n"
    "  kda-check capture fla.h5 --variant gpu-chunk                    adds to the file itself\n"
    "  kda-check capture fla.h5 --variant gpu-chunk,gpu-recurrent -o here.h5    leaves it, extends a copy\n"
    "  kda-check capture corr_keys:rho=0.9,dtype=bf16 --variant gpu-chunk -o corr.h5\n"
    "  kda-check run here.h5 --variant chunk --arithmetic h100 --against gpu-chunk@nvidia-h100-80gb-hbm3 \\\n"
    "    --limit max_ulp=exact                            elsewhere: is the CPU the same, bit for bit?\n"
    "\n"
    "Exit codes: 0 written; 2 usage, or a group that exists without --replace; 3 the fixture is missing or "
    "malformed;\n"
    "4 the variant cannot run here, or the file cannot be written.\n";

std::string line_of(const session::Captured& captured) {
  std::string what = join(captured.tensors);
  if (captured.stages > 0) what += fmt::format(", {} stages", captured.stages);
  const std::string formats =
      captured.dtype == captured.compute ? captured.dtype : captured.dtype + "/" + captured.compute;
  return fmt::format("{}  {}  {}  {}  {}\n", printable(captured.path), captured.group, what, formats,
                     captured.arithmetic);
}

}  // namespace

int capture_main(const Words& words) {
  session::CaptureRequest request;
  std::size_t chunk_size = 0;
  bool no_stages = false;
  CLI::App app;
  prepare(app, "capture",
          "Run variants and store what they answer in a fixture, as expected/<variant>@<device>");
  app.footer(footer);
  app.add_option("target", request.target, "A fixture, or a regime (with -o)")
      ->required()
      ->option_text("TARGET");
  add_names(app, "--variant", request.variants, "Variants to run (kda-check list)", "NAME,...");
  app.get_option("--variant")->required();
  app.add_option("--dtype", request.dtype,
                 "fp64, fp32, bf16, fp16 or fixture (default); must hold the stored inputs exactly")
      ->option_text("NAME")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_arithmetic(app, request.arithmetic, "As for run");
  add_chunk_size(app, chunk_size);
  app.add_flag("--no-stages", no_stages, "Only o and final_state");
  app.add_option("-o,--output", request.output, "Write the extended file there and leave TARGET as it is")
      ->option_text("FILE.h5");
  app.add_flag("--replace", request.replace, "Write groups that exist anew");
  add_threads(app, request.threads);
  add_memory_limit(app, request.limits.memory_budget);
  if (const auto done = parse(app, words)) return *done;
  if (chunk_size > 0) request.chunk_size = chunk_size;
  request.stages = !no_stages;
  Progress progress;
  const std::vector<session::Captured> captured = session::capture(request, log_through(progress));
  progress.clear();
  std::string text;
  for (const session::Captured& group : captured) text += line_of(group);
  write_stdout(text);
  return 0;
}

}  // namespace kda_check::cli

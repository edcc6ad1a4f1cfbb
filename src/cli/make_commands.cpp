// make, capture: what writes fixtures.
#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "cli/command.hpp"
#include "engine/regime_file.hpp"
#include "plan/source.hpp"

namespace kda_check::cli {

namespace {

constexpr char make_footer[] =
    R"(A regime is NAME or NAME:key=value,key=value (kda-check list regimes). All take B, T, H, HV, K, V, C, seed and dtype
(fp32); the same arguments give the same file. docs/scenarios.md says what each regime shows. fault=NAME,
by=VARIANT+SETTING... and compute=PRECISION record the output of a kernel with that fault beside it (docs/incidents.md).

Examples:
  kda-check make corr_keys -o corr.h5
  kda-check make corr_keys:rho=0.99,beta=0.5,T=512,dtype=bf16 -o corr.h5
  kda-check make k3_layer1:seed=2 -o k3.h5 && kda-check run k3.h5
  kda-check run k3_layer1:seed=2                    the same without a file
  kda-check make control:T=64,fault=exp2 -o wrong.h5
)";

constexpr char capture_footer[] =
    R"(capture stores what VARIANT computes on a fixture or a regime as the group expected/<variant>@<device>: o, final_state
and, for chunk forms, all stages, in the precision they are computed in. Everything else in the file stays as it is; the file is
replaced whole or not at all.

Examples:
  kda-check capture fla.h5 --variant gpu-chunk,gpu-recurrent -o here.h5    leaves it, extends a copy
  kda-check capture fla.h5 --variant gpu-chunk --in-place                  adds to the file itself
  kda-check capture corr_keys:rho=0.9,dtype=bf16 --variant gpu-chunk -o corr.h5
  kda-check run here.h5 --variant chunk --arithmetic h100 --against gpu-chunk@nvidia-h100-80gb-hbm3 \
    --limit max_ulp=exact                            elsewhere: is the CPU the same, bit for bit?

Exit codes: 0 written; 2 usage, or a group that exists without --replace; 3 the fixture is missing or malformed; 4 the
variant cannot run here, or the file cannot be written.
)";

/// A fixture with answers is not written over by accident.
void refuse_loss(const std::string& path, bool replace, const fixture::ReadLimits& limits) {
  std::error_code failure;
  if (replace || !std::filesystem::is_regular_file(path, failure)) return;
  try {
    fixture::ReadLimits headers = limits;
    headers.whole_tensors = false;
    const fixture::Fixture file = fixture::Fixture::open(path, headers);
    if (file.expected().empty()) return;
    throw Error(ErrorKind::usage, fmt::format("{} holds recorded outputs, which would be lost", path), {},
                "--replace writes it anew");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    throw Error(ErrorKind::usage, fmt::format("{} exists and is no fixture", path), {},
                "--replace writes it anew");
  }
}

}  // namespace

int make_main(const Words& words) {
  std::string text, path;
  int compression = 4;
  bool replace = false;
  OutputOptions output;
  ResourceOptions resources;
  Parser parser("make", "Write a regime as a fixture", make_footer);
  parser.positional(text, "REGIME", "NAME or NAME:key=value,...");
  parser.group("The file");
  parser.value("-o,--output", "FILE.h5", path, "The file to write");
  parser.number(
      "--compression", 0, 9, [&](std::size_t level) { compression = static_cast<int>(level); },
      "Level of deflate; 0 stores elements as they are (4)");
  parser.flag("--replace", replace, "Overwrite FILE.h5 even if it holds recorded outputs");
  add_output_options(parser, output);
  add_resources(parser, resources);
  if (!parser.parse(words)) return 0;
  if (path.empty()) throw Error(ErrorKind::usage, "make: no file to write", {}, "-o FILE.h5");
  return tell(words, output, {path}, [&](Outputs&, Progress& progress, report::Document& document) {
    refuse_loss(path, replace, resources.limits);
    const kda::RegimeRequest regime = kda::parse_regime(text);
    progress.show(text);
    OutputFile made(path, OutputKind::kept);
    const kda::Problem problem = plan::build_regime(regime, resources.limits);
    engine::RegimeFile file = engine::regime_file(regime, problem, resources.threads);
    file.request.compression = compression;
    fixture::write_fixture(made, file.request);
    report::Section section;
    section.key = "made";
    section.tabular = true;
    section.columns = {{"file", {}, report::Show::code}, {"regime", {}}, {"shape", {}}, {"options", {}}};
    section.add({path, text, plan::shape_text(problem.dimensions()), plan::options_text(problem)});
    document.sections.push_back(std::move(section));
  });
}

int capture_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  request.task = plan::Task::capture, request.command = "capture";
  bool in_place = false, no_stages = false;
  std::string target;
  Parser parser("capture",
                "Run variants and store their outputs in a fixture, as expected/<variant>@<device>",
                capture_footer);
  parser.positional(target, "TARGET", "A fixture, or a regime");
  parser.group("What is selected");
  add_variants(parser, request.selection, "Variants to run (kda-check list)");
  add_dtypes(parser, request.selection);
  add_arithmetic(parser, request);
  add_chunk_size(parser, request);
  parser.group("The file");
  parser.value("-o,--output", "FILE.h5", request.output,
               "Write the extended file there and leave TARGET as it is");
  parser.flag("--in-place", in_place, "Extend TARGET itself");
  parser.flag("--replace", request.replace,
              "Overwrite groups that exist, and a file at -o that holds recorded outputs");
  parser.flag("--no-stages", no_stages, "Only o, final_state and, where there is a loss, gradients");
  add_output_options(parser, planned.output);
  add_resources(parser, planned.resources);
  if (!parser.parse(words)) return 0;
  if (!request.selection.variants || request.selection.variants->empty())
    throw Error(ErrorKind::usage, "capture: no variant named", {}, "--variant gpu-chunk, for one");
  if (request.selection.dtypes && request.selection.dtypes->size() > 1)
    throw Error(ErrorKind::usage, "capture takes one --dtype");
  if (request.output.empty() != in_place)
    throw Error(ErrorKind::usage,
                in_place ? "--in-place contradicts --output" : "capture: where is it to be written?", {},
                "-o FILE.h5 writes a copy, --in-place extends the file itself");
  if (in_place && plan::is_regime(target))
    throw Error(ErrorKind::usage, fmt::format("capture: '{}' is a regime, not a file", target), {},
                "-o FILE.h5 says where it is written, with the outputs");
  std::error_code failure;
  if (std::filesystem::is_directory(target, failure))
    throw Error(ErrorKind::usage, fmt::format("capture: {} is a folder", target), {},
                "capture takes one fixture");
  if (!in_place && !std::filesystem::equivalent(target, request.output, failure))
    refuse_loss(request.output, request.replace, planned.resources.limits);
  request.targets = {target};
  request.capture_stages = !no_stages;
  return run_planned(words, std::move(planned));
}

}  // namespace kda_check::cli

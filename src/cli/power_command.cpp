// power: what a gate would see.
#include "cli/command.hpp"
#include "plan/power_classes.hpp"

namespace kda_check::cli {

namespace {

constexpr char power_footer[] =
    R"(power emulates a healthy kernel on the problem and puts faults into its output. For each fault it prints the least share
that the twins see, and the least share that breaks a derived limit (docs/verdicts.md).

Examples:
  kda-check power layer.h5                                  how small a fault in o is seen, in the file's own precision
  kda-check power layer.h5 --class bf16,tf32,fp32           in several
  kda-check power control:T=512,H=4 --class bf16            a problem made here
  kda-check power layer.h5 --tensor final_state --json      of final_state; JSON has the places too

Exit codes: 0 measured; 1 nothing can be said: no twins, or the healthy kernel is beyond them; 2 usage; 3 a file is
missing or malformed; 4 the report could not be written; 70 a bug here.
)";

}  // namespace

int power_main(const Words& words) {
  Planned planned;
  plan::Request& request = planned.request;
  request.task = plan::Task::power, request.command = "power";
  Parser parser("power", "How large a fault must be to be seen, by twins and by limits", power_footer);
  add_targets(parser, request, "Fixtures, folders, regimes (kda-check list regimes)");
  parser.group("What is selected");
  parser.names(
      "--class", "NAME,...", [&](Names names) { request.classes = std::move(names); },
      "Precisions of the products: bf16, fp16, tf32, fp32 (default: that of the problem)");
  parser.names(
      "--tensor", "NAME,...", [&](Names names) { request.selection.tensors = std::move(names); },
      "o (default), final_state");
  parser.group("In CI");
  add_dry_run(parser, planned);
  add_output_options(parser, planned.output);
  add_resources(parser, planned.resources);
  if (!parser.parse(words)) return 0;
  if (!request.classes.empty()) request.selection.dtypes.emplace();
  for (const std::string& name : request.classes)
    request.selection.dtypes->emplace_back(numeric::name_of(plan::power_dtype(name)));
  return run_planned(words, std::move(planned));
}

}  // namespace kda_check::cli

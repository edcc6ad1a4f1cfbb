#include "session/run_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "session/external.hpp"
#include "session/passes.hpp"
#include "session/replay.hpp"
#include "session/selection.hpp"

namespace kda_check::session {

namespace {

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

void choose_tensors(const RunRequest& request, RunPlan& plan) {
  const std::vector<PassTensors> passes = every_pass();
  const std::vector<std::string>& forward = passes.front().tensors;
  std::vector<std::string> known;
  for (const PassTensors& pass : passes) known.insert(known.end(), pass.tensors.begin(), pass.tensors.end());
  for (const std::string& name : request.judging.tensors)
    if (!has(known, name))
      throw Error(ErrorKind::usage, fmt::format("run has no tensor '{}'", name), {}, suggest(name, known));
  const std::vector<std::string> wanted = without_repeats(request.judging.tensors);
  for (const std::string& name : known) {
    if (!wanted.empty() && !has(wanted, name)) continue;
    if (has(forward, name)) {
      plan.tensors.push_back(name);
    } else if (request.backward) {
      plan.gradients.push_back(name);
    } else if (!wanted.empty()) {
      throw Error(ErrorKind::usage, fmt::format("--tensor {} contradicts --no-backward", name));
    }
  }
}

}  // namespace

bool RunPlan::wants_group(const std::string& name) const { return against_every_group || has(groups, name); }

bool RunPlan::compares(std::string_view tensor, bool has_loss) const {
  const std::string name(tensor);
  return has(tensors, name) || (has_loss && has(gradients, name));
}

RunPlan planned(const RunRequest& request) {
  RunPlan plan;
  plan.variants = selected_variants(request.variants, request.registry);
  plan.dtypes = selected_dtypes(request.dtypes);
  for (const std::string& name : without_repeats(request.against)) {
    plan.against_oracle = plan.against_oracle || name == "oracle" || name == "all";
    plan.against_every_group = plan.against_every_group || name == "all";
    plan.against_replay = plan.against_replay || name == replay_name;
    if (name != "oracle" && name != "all" && name != replay_name) plan.groups.push_back(name);
  }
  if (request.against.empty()) plan.against_oracle = plan.against_every_group = true;
  if (!request.oracle) {
    if (std::find(request.against.begin(), request.against.end(), "oracle") != request.against.end())
      throw Error(ErrorKind::usage, "--against oracle contradicts --oracle none");
    plan.against_oracle = false;
  }
  if (request.probe && !plan.against_oracle)
    throw Error(ErrorKind::usage,
                "--probe explains failures against the oracle, and nothing is compared with it", {},
                request.oracle ? "add oracle to --against" : "leave out --oracle none");
  choose_tensors(request, plan);
  check_arithmetic(request.arithmetic, plan.variants);
  if (plan.against_replay) require_replays(plan.variants, request.registry);
  if (request.external) check_external(*request.external);
  return plan;
}

}  // namespace kda_check::session

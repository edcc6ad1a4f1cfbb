#include "session/passes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::session {

namespace {

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool exists(const std::string& tensor, const kda::Problem& problem) {
  for (const kda::GradientRow& row : kda::gradients())
    if (row.name == tensor) return problem.has_loss() && kda::has_gradient(problem, row.gradient);
  return true;
}

}  // namespace

std::string_view name_of(Pass pass) { return pass == Pass::backward ? "backward" : "forward"; }

std::vector<PassTensors> every_pass() {
  std::vector<std::string> gradients;
  for (const kda::GradientRow& row : kda::gradients()) gradients.emplace_back(row.name);
  return {{Pass::forward, {"o", "final_state"}}, {Pass::backward, std::move(gradients)}};
}

std::vector<PassTensors> selected_passes(std::string_view command, const std::vector<std::string>& names,
                                         bool backward, const std::vector<PassTensors>& known) {
  if (names.empty()) return {known[backward ? 1 : 0]};
  std::vector<std::string> all;
  for (const PassTensors& pass : known) all.insert(all.end(), pass.tensors.begin(), pass.tensors.end());
  for (const std::string& name : names) {
    if (!has(all, name))
      throw Error(ErrorKind::usage, fmt::format("{} has no tensor '{}'", command, name), {},
                  suggest(name, all));
    if (backward && has(known[0].tensors, name))
      throw Error(ErrorKind::usage, fmt::format("--tensor {} contradicts --backward", name));
  }
  std::vector<PassTensors> selected;
  for (const PassTensors& pass : known) {
    PassTensors wanted{pass.pass, {}};
    for (const std::string& name : pass.tensors)
      if (has(names, name)) wanted.tensors.push_back(name);
    if (!wanted.tensors.empty()) selected.push_back(std::move(wanted));
  }
  return selected;
}

std::vector<std::string> tensors_here(const PassTensors& wanted, const kda::Problem& problem) {
  std::vector<std::string> list;
  for (const std::string& name : wanted.tensors)
    if (exists(name, problem)) list.push_back(name);
  return list;
}

std::string why_no_pass(Pass pass, const kda::Variant& variant) {
  if (pass == Pass::forward || variant.run_backward != nullptr) return {};
  return kda::is_on_gpu(variant) ? "no backward pass on a GPU, and so no replay of one" : "no backward pass";
}

void note_once(std::vector<std::string>& notes, std::string note) {
  if (!has(notes, note)) notes.push_back(std::move(note));
}

Answered run_pass(Pass pass, const kda::Variant& variant, const kda::Problem& problem,
                  const kda::RunOptions& options) {
  if (pass == Pass::backward)
    return computed_gradients(variant, options, variant.run_backward(problem, options));
  return computed_answer(variant, options, variant.run(problem, options));
}

analysis::HeldOracle hold_pass(Pass pass, const kda::Problem& problem, std::size_t chunk_size, int threads,
                               std::size_t budget) {
  constexpr auto precision = kda::OraclePrecision::double_double;
  if (pass == Pass::forward) return analysis::hold_oracle(problem, precision, threads);
  check_gradient_memory(problem, threads, budget, "--memory-limit raises it");
  return analysis::hold_gradient_oracle(problem, precision, chunk_size, threads);
}

}  // namespace kda_check::session

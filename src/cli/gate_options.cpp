#include "cli/gate_options.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/output.hpp"

namespace kda_check::cli {

void add_gate_options(CLI::App& app, GateOptions& options) {
  app.add_option("--tolerance", options.tolerance_path,
                 "Limits by rules, each with its reason, over the derived ones and under --limit\n"
                 "(docs/limits.md; cases/tolerances.toml)")
      ->option_text("FILE.toml")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--baseline", options.baseline_path,
                 "Fail what got worse than this table of earlier results says (docs/baseline.md)")
      ->option_text("FILE.tsv")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_flag("--update-baseline{better}", options.update,
               "Rewrite it with what got better and what is new; =worse: with what got worse too")
      ->check(CLI::IsMember({"better", "worse"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::shared_ptr<compare::Tolerances> TolerancesRead::read(const std::string& path) {
  if (path.empty()) return nullptr;
  std::shared_ptr<compare::Tolerances>& file = files_[path];
  if (!file) file = std::make_shared<compare::Tolerances>(compare::Tolerances::read(path));
  return file;
}

void TolerancesRead::add_unused(std::vector<report::FailedInput>& errors) const {
  for (const auto& [path, file] : files_)
    for (const compare::ToleranceRule* const rule : file->unused())
      errors.push_back(
          {fmt::format("a rule of the tolerances matched nothing ({}); hint: remove it, or correct "
                       "its conditions",
                       rule->place),
           1});
}

std::optional<session::BaselineGate> baseline_gate(const GateOptions& options, bool narrowed,
                                                   std::vector<std::string>& inputs) {
  if (options.baseline_path.empty()) {
    if (options.update.empty()) return std::nullopt;
    throw Error(ErrorKind::usage, "--update-baseline of which file?", {}, "--baseline FILE.tsv");
  }
  inputs.push_back(options.baseline_path);
  session::BaselineRequest request{options.baseline_path, std::nullopt, narrowed};
  if (options.update == "better") request.update = analysis::Ratchet::better;
  if (options.update == "worse") request.update = analysis::Ratchet::worse;
  return std::optional<session::BaselineGate>(std::in_place, std::move(request));
}

void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) write_stderr(fmt::format("kda-check: {}\n", printable(line)));
}

}  // namespace kda_check::cli

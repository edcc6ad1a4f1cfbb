// Options that run and diff share: what is judged, and by which limits.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "report/writers.hpp"
#include "session/requests.hpp"

namespace kda_check::cli {

void add_judging_options(CLI::App& app, session::JudgingRequest& judging);

/// Where the reports of a command go.
struct OutputOptions {
  std::vector<std::string> reports;  ///< FORMAT or FORMAT=PATH
  std::string json_path;             ///< empty: no --json
  std::string color = "auto";
  bool quiet = false, verbose = false;

  bool is_set() const {
    return !reports.empty() || !json_path.empty() || color != "auto" || quiet || verbose;
  }
};
void add_output_options(CLI::App& app, OutputOptions& options);

/// Opens the file of one report. Throws Error{usage} for a path that is one of `inputs` or ends in .h5,
/// Error{environment} for one that cannot be written.
OutputFile report_file(std::string_view format, const std::string& path,
                       const std::vector<std::string>& inputs);

/// Runs a command that measures and writes its own text or JSON: `work` gives the result, with argv, errors
/// and exit_code(); `text` and `json` print it. An empty `json_path`: no JSON; "-": instead of the text.
template <class Work, class Text, class Json>
int measure(const Words& words, const std::string& json_path, const std::vector<std::string>& inputs,
            Work work, Text text, Json json) {
  std::optional<OutputFile> file;
  if (!json_path.empty()) file.emplace(report_file("json", json_path, inputs));
  Progress progress;
  auto result = work(log_through(progress));
  result.argv = words;
  progress.clear();
  print_errors(result.errors);
  if (!file || !file->is_stdout()) write_stdout(text(result));
  if (file) file->commit(json(result));
  return result.exit_code();
}

/// The outputs, opened. At most one of them is standard output; without any it is the text report.
class Outputs {
 public:
  /// Throws what report_file throws.
  Outputs(const OutputOptions& options, const std::vector<std::string>& inputs);
  void write(const report::Result& result);
  /// One of the reports draws: the session is to keep profiles.
  bool draw() const;

 private:
  struct Target {
    const report::Writer* writer;
    std::string path;
    OutputFile file;
  };
  report::WriteOptions options_;
  std::vector<Target> targets_;
};

}  // namespace kda_check::cli

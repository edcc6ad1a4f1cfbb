// Where the reports of a command go, the same for every command.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "cli/parser.hpp"
#include "plan/shard.hpp"
#include "report/writers.hpp"

namespace kda_check::cli {

struct OutputOptions {
  Names reports;          ///< FORMAT or FORMAT=PATH
  std::string json_path;  ///< empty: no --json
  std::string color = "auto";
  bool quiet = false, verbose = false;

  bool is_set() const {
    return !reports.empty() || !json_path.empty() || color != "auto" || quiet || verbose;
  }
};
void add_output_options(Parser& parser, OutputOptions& options);

/// The outputs, opened before any work. At most one of them is standard output; without any it is the text
/// report, written part by part as the work goes on.
class Outputs {
 public:
  /// `inputs`: paths that are read. {shard} in a path becomes the number of the shard. Throws Error{usage}
  /// for a path that is an input, or that of two reports, or one for all of several shards;
  /// Error{environment} for one that cannot be written.
  Outputs(const OutputOptions& options, const Names& inputs, const plan::Shard& shard = {});

  /// One of the reports draws: profiles are to be kept.
  bool draw() const;
  /// What is about one problem goes to the text report now.
  void add(const report::Document& part);
  /// All reports, whatever becomes of each; those that cannot be written are said, a line each. Returns the
  /// exit code of the document, or 4 where it is higher.
  int finish(const report::Document& document);

 private:
  struct Target {
    const report::Writer* writer;
    std::string path;
    OutputFile file;
    bool grows;  ///< the text report on standard output
  };
  report::WriteOptions options_for(const Target& target) const;
  void print(const std::string& text);
  void complain(const Error& error);

  report::WriteOptions options_;
  std::vector<Target> targets_;
  bool nobody_reads_ = false;  ///< standard output was closed by whoever read it, or has failed
  int code_ = 0;               ///< of what could not be written
};

}  // namespace kda_check::cli

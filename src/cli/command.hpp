// The commands: one row each in app.cpp, one file each.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "cli/outputs.hpp"
#include "cli/parser.hpp"
#include "cli/progress.hpp"
#include "plan/planner.hpp"
#include "plan/request.hpp"

namespace kda_check::cli {

struct Command {
  const char* name;
  const char* group;  ///< what it is for: "Judge", "Gate", "Make", "Look"; empty: not in the help
  const char* summary;
  /// Parses its words and works; returns the exit code.
  int (*main)(const Words& words);
};

/// All of them, in the order of the help.
std::span<const Command> commands();

int run_main(const Words& words);
int diff_main(const Words& words);
int explain_main(const Words& words);
int merge_main(const Words& words);
int show_main(const Words& words);
int list_main(const Words& words);
int bench_main(const Words& words);
int make_main(const Words& words);
int capture_main(const Words& words);
int power_main(const Words& words);
int selftest_main(const Words& words);
int completions_main(const Words& words);
int man_main(const Words& words);

/// What `list` takes.
Names list_sections();
/// What `completions` takes.
Names shell_names();

// ---- options that commands share, with one meaning

struct ResourceOptions {
  int threads = 1;
  fixture::ReadLimits limits;
  bool is_set = false;
};
/// --threads, --memory-limit
void add_resources(Parser& parser, ResourceOptions& options);

/// The targets, and what is selected of them: --variant, --recorded, --dtype, --tensor, --backward,
/// --no-backward,
/// --arithmetic, --chunk-size.
void add_targets(Parser& parser, plan::Request& request, const char* text);
void add_selection(Parser& parser, plan::Request& request);
void add_variants(Parser& parser, plan::Selection& selection, const char* text);
void add_recorded(Parser& parser, plan::Selection& selection, const char* text);
void add_dtypes(Parser& parser, plan::Selection& selection);
void add_tensors(Parser& parser, plan::Selection& selection);
void add_passes(Parser& parser, plan::Selection& selection);
void add_arithmetic(Parser& parser, plan::Request& request);
void add_chunk_size(Parser& parser, plan::Request& request);
void add_oracle_device(Parser& parser, plan::Request& request);
/// --limit METRIC=VALUE
void add_limits(Parser& parser, plan::Judging& judging, const char* text);
/// --limit, --max-ulp, --atol, --rtol, --worst
void add_judging(Parser& parser, plan::Judging& judging);
/// Throws Error{usage} for limits that contradict each other, and --rtol without --atol.
void check_judging(const plan::Judging& judging);
/// --require
void add_requirements(Parser& parser, plan::Request& request);

/// The request of a line of a suite. Throws Error{usage, input} for what a line cannot have.
plan::Request parse_run_line(const Words& words);

// ---- how commands work

/// A command that makes its document at once: opens the outputs, works, writes. What is in the document when
/// a signal ends the work is written. Returns the exit code.
int tell(const Words& words, const OutputOptions& output, const Names& inputs,
         const std::function<void(Outputs& outputs, Progress& progress, report::Document& document)>& work);

/// Who computes forward runs of the chunk form together (docs/serving.md).
enum class SharedBy : unsigned char {
  nobody,
  mpi,   ///< the processes that mpirun started: runs of chunk
  nccl,  ///< the GPUs of this host: runs of gpu-chunk
};

/// A command whose request is planned and run.
struct Planned {
  plan::Request request;
  OutputOptions output;
  ResourceOptions resources;
  plan::Shard shard;
  bool dry_run = false;
  SharedBy shared_by = SharedBy::nobody;
  std::optional<std::size_t> rank_timeout;  ///< seconds that a process of mpirun may be silent; without: 60
  std::string baseline;                     ///< path; empty: none
  std::string update;                       ///< of the baseline: "", "better", "worse"
};
/// --dry-run
void add_dry_run(Parser& parser, Planned& planned);
int run_planned(const Words& words, Planned planned);

}  // namespace kda_check::cli

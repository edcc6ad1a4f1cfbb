// The subcommands: one row each in app.cpp, one file each here. A command registers its options on a CLI::App
// that fills its own request, and is called when it was chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/output.hpp"
#include "report/result.hpp"
#include "session/requests.hpp"

namespace kda_check::cli {

/// The words after `kda-check`, for suites and for the request recorded in a report.
using Words = std::vector<std::string>;

struct Command {
  const char* name;
  const char* summary;
  /// Parses its words and runs; returns the exit code.
  int (*main)(const Words& words);
  bool is_hidden = false;  ///< not in the help: for those who build packages
};

/// All of them, in the order of the help.
std::span<const Command> commands();

int run_main(const Words& words);
int diff_main(const Words& words);
int attribute_main(const Words& words);
int grow_main(const Words& words);
int history_main(const Words& words);
int show_main(const Words& words);
int list_main(const Words& words);
int bench_main(const Words& words);
int make_main(const Words& words);
int capture_main(const Words& words);
int forecast_main(const Words& words);
int selftest_main(const Words& words);
int completions_main(const Words& words);
int man_main(const Words& words);

/// Parses `words` (the command's name first). Prints help and returns 0, throws Error{usage} with a
/// suggestion for an unknown option; nullopt: go on.
std::optional<int> parse(CLI::App& app, const Words& words);

/// While one lives, parse() hands the parser to it, options registered, instead of parsing; the command then
/// returns without doing anything. How completions and the man page learn what the options are.
class ParserVisit {
 public:
  explicit ParserVisit(std::function<void(const CLI::App&)> visitor);
  ParserVisit(const ParserVisit&) = delete;
  ParserVisit& operator=(const ParserVisit&) = delete;
  ~ParserVisit();
};

/// What `list` takes.
std::vector<std::string> list_sections();
/// What `completions` takes.
std::vector<std::string> shell_names();

/// A fresh parser for a command, with the habits all of them share.
void prepare(CLI::App& app, const char* name, const char* summary);

/// An option that takes names between commas, repeatable.
void add_names(CLI::App& app, const char* flag, std::vector<std::string>& names, const char* text,
               const char* value);

/// --arithmetic, whose words are worth more care: an empty one is refused.
void add_arithmetic(CLI::App& app, std::vector<std::string>& words, const char* text);

/// Refuses what is not a finite number >= 0.
CLI::Validator non_negative_number();

/// --require (session/requirements.hpp).
void add_requirements(CLI::App& app, std::vector<std::string>& names);

/// --chunk-size; 0: the fixture's.
void add_chunk_size(CLI::App& app, std::size_t& rows);

/// --threads, default all processors.
void add_threads(CLI::App& app, int& threads);

/// --memory-limit, e.g. 512M or 8G.
void add_memory_limit(CLI::App& app, std::size_t& bytes);

/// Warnings as lines on standard error, progress through `progress`, which must outlive the log.
session::Log log_through(Progress& progress);

/// One line on standard error for each input that could not be read.
void print_errors(const std::vector<report::FailedInput>& errors);

}  // namespace kda_check::cli

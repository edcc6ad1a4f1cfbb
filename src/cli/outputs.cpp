#include "cli/outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <new>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/names.hpp"
#include "cli/progress.hpp"
#include "plan/target.hpp"

namespace kda_check::cli {

namespace {

/// Also where there is no file yet, at the end of a link or without one.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code failure;
  const auto resolved = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(link_target(path), failure), failure);
  };
  return std::filesystem::equivalent(a, b, failure) || resolved(a) == resolved(b);
}

std::string with_shard(std::string path, const plan::Shard& shard) {
  constexpr std::string_view word = "{shard}";
  bool named = false;
  for (std::size_t at = path.find(word); at != std::string::npos; at = path.find(word)) {
    path.replace(at, word.size(), fmt::format("{}", shard.index));
    named = true;
  }
  if (!named && !shard.source.empty() && !shard.is_whole())
    throw Error(ErrorKind::usage, fmt::format("all {} shards would write {}", shard.count, path), {},
                "with --shard auto a path has {shard} in it: --json 'part-{shard}.json'");
  return path;
}

void refuse_input(std::string_view format, const std::string& path, const Names& inputs) {
  if (path.ends_with(".h5") || path.ends_with(".hdf5"))
    throw Error(ErrorKind::usage, fmt::format("will not write a {} report over {}", format, path), {},
                "reports end otherwise: --json out.json");
  for (const std::string& input : inputs)
    if (same_file(path, input) && !plan::is_regime(input))  // also a baseline that is not there yet
      throw Error(ErrorKind::usage, fmt::format("{} is an input and an output", path));
}

}  // namespace

void add_output_options(Parser& parser, OutputOptions& options) {
  parser.group("Reports");
  Names formats;
  for (const report::Writer& writer : report::writers()) formats.emplace_back(writer.name);
  parser.repeated(
      "--report", "FORMAT[=PATH]", [&](const std::string& text) { options.reports.push_back(text); },
      fmt::format("Write a report ({}) to PATH, or to standard output; repeatable", join(formats)));
  parser.optional_value(
      "--json", "[PATH]", "-", false, [&](const std::string& path) { options.json_path = path; },
      "Write JSON to PATH, or to standard output instead of the text");
  parser.choice(
      "--color", "WHEN", {"auto", "always", "never"},
      [&](const std::string& choice) { options.color = choice; },
      "auto, always or never; auto respects NO_COLOR");
  parser.flag("-q,--quiet", options.quiet, "Only what did not pass, and the summary");
  parser.flag("-v,--verbose", options.verbose,
              "All rows and metrics, the worst points and the arithmetic of every output");
}

Outputs::Outputs(const OutputOptions& options, const Names& inputs, const plan::Shard& shard) {
  options_.detail = options.verbose ? report::Detail::verbose
                    : options.quiet ? report::Detail::quiet
                                    : report::Detail::normal;
  options_.color = wants_color(options.color);
  options_.unicode = wants_unicode();
  bool stdout_taken = false;
  const auto add = [&](std::string_view format, const std::string& given) {
    const report::Writer& writer = report::writer_named(format);
    if (given.empty())
      throw Error(ErrorKind::usage, fmt::format("--report {}=: no path", format), {},
                  fmt::format("--report {}=PATH", format));
    const std::string path = given == "-" ? given : with_shard(given, shard);
    for (const Target& target : targets_)
      if (path != "-" && same_file(path, target.path))
        throw Error(ErrorKind::usage, fmt::format("two reports to {}", path));
    if (path == "-" && stdout_taken)
      throw Error(ErrorKind::usage, "two reports to standard output", {},
                  "give one a path: --report json=out.json");
    if (path != "-") refuse_input(format, path, inputs);
    stdout_taken = stdout_taken || path == "-";
    targets_.push_back({&writer, path, OutputFile(path), path == "-" && writer.name == "text"});
  };
  for (const std::string& report : options.reports) {
    const std::size_t equals = report.find('=');
    add(std::string_view(report).substr(0, equals),
        equals == std::string::npos ? std::string("-") : report.substr(equals + 1));
  }
  if (!options.json_path.empty()) add("json", options.json_path);
  if (!stdout_taken) add("text", "-");
}

bool Outputs::draw() const {
  return std::ranges::any_of(targets_, [](const Target& target) { return target.writer->draws; });
}

report::WriteOptions Outputs::options_for(const Target& target) const {
  report::WriteOptions options = options_;
  options.color = options.color && target.file.is_stdout();
  options.unicode = options.unicode && target.file.is_stdout();
  return options;
}

void Outputs::print(const std::string& text) {
  if (nobody_reads_) return;
  try {
    if (write_stdout(text)) return;
    // Whoever read has seen enough. Where nobody else is to read, there is nothing more to do.
    if (targets_.size() == 1 && !interrupted()) interrupt(SIGPIPE);
  } catch (const Error& error) {
    // What goes elsewhere is none the worse for it.
    if (targets_.size() == 1) throw;
    complain(error);
  }
  nobody_reads_ = true;
}

void Outputs::complain(const Error& error) {
  write_stderr(fmt::format("kda-check: error: {}\n", printable(error.what())));
  code_ = std::max(code_, exit_code(error.kind()));
}

void Outputs::add(const report::Document& part) {
  for (const Target& target : targets_)
    if (target.grows) print(report::text_of_problem(part, options_for(target)));
}

int Outputs::finish(const report::Document& document) {
  for (Target& target : targets_) {
    try {
      if (target.grows)
        print(report::text_of_end(document, options_for(target)));
      else if (target.file.is_stdout())
        print(target.writer->write(document, options_for(target)));
      else
        target.file.commit(target.writer->write(document, options_for(target)));
    } catch (const Error& error) {
      complain(error);
    } catch (const std::bad_alloc&) {  // others may be smaller
      complain(Error(ErrorKind::environment,
                     fmt::format("out of memory for the {} report", target.writer->name),
                     target.path == "-" ? std::string("standard output") : target.path));
    }
  }
  if (nobody_reads_ && targets_.size() == 1)
    end_by_signal(document.is_interrupted() ? document.signal : SIGPIPE);
  return std::max(report::exit_code(document), code_);
}

}  // namespace kda_check::cli

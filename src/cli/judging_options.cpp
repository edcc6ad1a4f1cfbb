#include "cli/judging_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "session/sources.hpp"

namespace kda_check::cli {

void add_judging_options(CLI::App& app, session::JudgingRequest& judging) {
  add_names(app, "--tensor", judging.tensors, "Only these tensors, e.g. o,final_state", "NAME,...");
  app.add_option_function<std::vector<std::string>>(
         "--limit",
         [&judging](const std::vector<std::string>& texts) {
           judging.limits.clear();
           for (const std::string& text : texts) judging.limits.push_back(compare::parse_limit(text));
         },
         "Override the limit of one metric: a number, exact (0) or none; repeatable")
      ->expected(1)
      ->option_text("METRIC=VALUE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const auto number = [&app](const char* name, std::optional<double>& target, const char* text) {
    app.add_option(name, target, text)
        ->check(non_negative_number())
        ->option_text("X")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  number("--atol", judging.atol, "Every element must meet |got - expected| <= atol + rtol |expected|");
  number("--rtol", judging.rtol, "See --atol");
  app.add_option_function<double>(
         "--max-ulp",
         [&judging](double value) {
           judging.limits.push_back({"max_ulp", value, false, false});
         },
         "Short for --limit max_ulp=N")
      ->check(non_negative_number())
      ->option_text("N")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->trigger_on_parse(false);
  app.add_option("--worst", judging.worst, "Points to list for a failed tensor (default 5)")
      ->check(CLI::Range(0, 1000))
      ->option_text("N")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_output_options(CLI::App& app, OutputOptions& options) {
  std::string formats;
  for (const report::Writer& writer : report::writers())
    formats += fmt::format("{}{}", formats.empty() ? "" : ", ", writer.name);
  app.add_option("--report", options.reports,
                 fmt::format("Write a report ({}) to PATH, or to standard output; repeatable", formats))
      ->expected(1)
      ->option_text("FORMAT[=PATH]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--json", options.json_path, "Write JSON to PATH, or to standard output instead of the text")
      ->expected(0, 1)
      ->default_str("-")
      ->option_text("[PATH]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--color", options.color, "auto, always or never; auto respects NO_COLOR")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->option_text("WHEN")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_flag("-q,--quiet", options.quiet, "Only what did not pass, and the summary");
  app.add_flag("-v,--verbose", options.verbose,
               "All metrics, the worst points and the arithmetic of every answer");
}

namespace {

bool same_file(const std::string& a, const std::string& b) {
  std::error_code failure;
  const auto resolved = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, failure), failure);
  };
  return resolved(a) == resolved(b);
}

}  // namespace

OutputFile report_file(std::string_view format, const std::string& path,
                       const std::vector<std::string>& inputs) {
  if (path.ends_with(".h5"))
    throw Error(ErrorKind::usage, fmt::format("will not write a {} report over {}", format, path), {},
                "to standard output it is --json=- before the file, or --json after it");
  for (const std::string& input : inputs) {
    std::error_code failure;
    if (path == "-") break;
    // Also a baseline that is not there yet.
    if (std::filesystem::equivalent(path, input, failure) ||
        (!session::is_regime(input) && same_file(path, input)))
      throw Error(ErrorKind::usage, fmt::format("{} is an input and an output", path));
  }
  if (path.empty())
    throw Error(ErrorKind::usage, fmt::format("--report {}=: no path", format), {},
                fmt::format("--report {}=PATH", format));
  return OutputFile(path);
}

Outputs::Outputs(const OutputOptions& options, const std::vector<std::string>& inputs) {
  options_.detail = options.verbose ? report::Detail::verbose
                    : options.quiet ? report::Detail::quiet
                                    : report::Detail::normal;
  options_.color = wants_color(options.color);
  bool stdout_taken = false;
  const auto add = [&](std::string_view format, const std::string& path) {
    const report::Writer& writer = report::writer_named(format);
    for (const Target& target : targets_)
      if (path != "-" && same_file(path, target.path))
        throw Error(ErrorKind::usage, fmt::format("two reports to {}", path));
    if (path == "-" && stdout_taken)
      throw Error(ErrorKind::usage, "two reports to standard output", {},
                  "give one a path: --report json=out.json");
    stdout_taken = stdout_taken || path == "-";
    targets_.push_back({&writer, path, report_file(format, path, inputs)});
  };
  for (const std::string& report : options.reports) {
    const std::size_t equals = report.find('=');
    add(report.substr(0, equals), equals == std::string::npos ? "-" : report.substr(equals + 1));
  }
  if (!options.json_path.empty()) add("json", options.json_path);
  if (!stdout_taken) targets_.push_back({&report::writer_named("text"), "-", OutputFile("-")});
}

bool Outputs::draw() const {
  return std::any_of(targets_.begin(), targets_.end(),
                     [](const Target& target) { return target.writer->draws; });
}

void Outputs::write(const report::Result& result) {
  for (Target& target : targets_) {
    report::WriteOptions options = options_;
    options.color = options.color && target.file.is_stdout();
    target.file.commit(target.writer->write(result, options));
  }
}

}  // namespace kda_check::cli

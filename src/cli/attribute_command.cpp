#include <fmt/format.h>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/judging_options.hpp"
#include "cli/output.hpp"
#include "report/attribution_html.hpp"
#include "session/attribute.hpp"
#include "session/requirements.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "Axes: contraction (FMA), exponential, reduction (order of sums), storage (operand rounding), "
    "formulation.\n"
    "Each is tried alone, the others ideal, and made ideal alone, the others as computed "
    "(docs/attribution.md).\n"
    "\n"
    "Examples:\n"
    "  kda-check attribute fla.h5 --variant chunk --arithmetic fla     what makes FLA's kernel err on this "
    "file?\n"
    "  kda-check attribute fla.h5 --variant recurrent --dtype fp32 --arithmetic h100\n"
    "  kda-check attribute fla.h5 --between fla_chunk,recurrent        from our recurrence to FLA's chunk, "
    "step by step\n"
    "  kda-check attribute fla.h5 --tensor dq,dg --variant chunk --arithmetic fla     the same of gradients\n"
    "  kda-check attribute corr_keys:rho=0.99 --variant chunk --dtype bf16 --json\n"
    "  kda-check attribute fla.h5 --variant chunk --report html=why.html    a page with bars\n"
    "\n"
    "Exit codes: 0 measured; 2 usage; 3 a file is missing or malformed; 4 something could not run or be "
    "written;\n"
    "70 a bug here.\n";

struct AttributeCommand {
  session::AttributeRequest request;
  std::string json_path, html_path;
  std::vector<std::string> reports;  ///< FORMAT=PATH
  std::size_t chunk_size = 0;
  std::vector<std::string> required;

  void add_options(CLI::App& app) {
    prepare(app, "attribute", "How much of an error each axis of the arithmetic and each stage makes");
    app.footer(footer);
    app.add_option("targets", request.targets, "Fixtures, directories, regimes")->option_text("TARGET...");
    add_names(app, "--variant", request.variants, "Variants (default: all; kda-check list)", "NAME,...");
    add_names(app, "--dtype", request.dtypes,
              "fp64, fp32, bf16, fp16 or fixture, the dtype of the file (default)", "NAME,...");
    add_arithmetic(app, request.arithmetic,
                   "The arithmetic to take apart: presets and key=value (kda-check list arithmetic)");
    add_names(app, "--between", request.between,
              "Two answers A,B: variants, variant+preset, or recorded groups; the steps from B to A", "A,B");
    add_names(app, "--tensor", request.tensors,
              "o, final_state, or gradients: dq dk dv dg dbeta dinitial_state dA_log ddt_bias (default: o, "
              "final_state)",
              "NAME,...");
    app.add_flag("--backward", request.backward, "All gradients, of problems with do or dht");
    add_requirements(app, required);
    add_chunk_size(app, chunk_size);
    app.add_option("--json", json_path, "Write JSON to PATH, or to standard output instead of the text")
        ->option_text("[PATH]")
        ->expected(0, 1)
        ->default_str("-")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_option("--report", reports,
                   "Also write a page with bars (html=PATH), or JSON (json=PATH); repeatable")
        ->expected(1)
        ->option_text("FORMAT=PATH")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    add_threads(app, request.threads);
    add_memory_limit(app, request.limits.memory_budget);
  }

  void take_reports() {
    for (const std::string& report : reports) {
      const std::size_t equals = report.find('=');
      const std::string format = report.substr(0, equals);
      if (format != "html" && format != "json")
        throw Error(ErrorKind::usage, fmt::format("attribute: no report format '{}'", format), {},
                    suggest(format, {"html", "json"}));
      if (equals == std::string::npos || equals + 1 == report.size())
        throw Error(ErrorKind::usage, fmt::format("--report {}: no path", report), {},
                    fmt::format("--report {}=PATH", format));
      (format == "html" ? html_path : json_path) = report.substr(equals + 1);
    }
    if (html_path == "-")
      throw Error(ErrorKind::usage, "the page wants a file", {}, "--report html=out.html");
    if (!html_path.empty() && html_path == json_path)
      throw Error(ErrorKind::usage, fmt::format("two reports to {}", html_path));
  }

  void finish() {
    take_reports();
    if (chunk_size > 0) request.chunk_size = chunk_size;
    if (request.targets.empty())
      throw Error(ErrorKind::usage, "attribute: no fixture given", {}, "kda-check attribute FILE.h5");
    if (!request.between.empty() && request.between.size() != 2)
      throw Error(ErrorKind::usage, "--between wants two answers", {}, "--between fla_chunk,recurrent");
  }
};

}  // namespace

int attribute_main(const Words& words) {
  AttributeCommand command;
  CLI::App app;
  command.add_options(app);
  if (const auto done = parse(app, words)) return *done;
  command.finish();
  session::check_requirements(command.required);
  std::optional<OutputFile> page;
  if (!command.html_path.empty())
    page.emplace(report_file("html", command.html_path, command.request.targets));
  return measure(
      words, command.json_path, command.request.targets,
      [&](const session::Log& log) {
        report::AttributionResult result = session::attribute(command.request, log);
        session::add_missed_requirements(command.required, result);
        if (page) {
          report::AttributionResult told = result;
          told.argv = words;
          page->commit(report::write_attribution_html(told));
        }
        return result;
      },
      report::write_attribution_text, report::write_attribution_json);
}

}  // namespace kda_check::cli

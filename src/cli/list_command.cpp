#include <fmt/format.h>

#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/suite.hpp"
#include "compare/metrics.hpp"
#include "gpu.hpp"
#include "kda/kernels/table.hpp"
#include "kda/regimes.hpp"
#include "kda/variants.hpp"
#include "report/writers.hpp"

namespace kda_check::cli {

namespace {

std::string variants_text() {
  std::string out = "variants\n";
  for (const kda::Variant& variant : kda::variants()) {
    std::string dtypes;
    for (const numeric::Format& format : numeric::formats)
      if (variant.has_dtype(format.dtype))
        dtypes += fmt::format("{}{}", dtypes.empty() ? "" : " ", format.name);
    const std::string reason = variant.unavailable();
    const char* const passes = variant.run_backward != nullptr ? "forward backward" : "forward";
    fmt::format_to(std::back_inserter(out), "  {:<14} {:<40} {:<4} {:<20} {:<16} {}\n", variant.name,
                   variant.summary, variant.device, dtypes, passes, reason.empty() ? "available" : reason);
  }
  return out;
}

std::string metrics_text() {
  std::string out = "metrics\n";
  for (const compare::Metric& metric : compare::metrics())
    fmt::format_to(std::back_inserter(out), "  {:<18} {}\n", metric.name, metric.summary);
  return out;
}

std::string arithmetic_text() {
  std::string out = "arithmetic\n";
  for (const kda::AxisDescription& axis : kda::axis_descriptions())
    fmt::format_to(std::back_inserter(out), "  {:<12} {}\n  {:<12}   {}\n", axis.key, axis.summary, "",
                   axis.values);
  return out;
}

/// Its own parameters, and those whose default is its own.
std::string regimes_text() {
  std::string shared;
  for (const kda::Parameter& parameter : kda::shared_parameters())
    shared += fmt::format("{}={} ", parameter.name, parameter.value);
  std::string out = fmt::format("regimes  ({}dtype=fp32 unless stated)\n", shared);
  for (const kda::Recipe& recipe : kda::recipes()) {
    std::string own;
    for (const kda::Parameter& parameter : recipe.parameters)
      own += fmt::format("{}{}={}", own.empty() ? "" : " ", parameter.name, parameter.value);
    fmt::format_to(std::back_inserter(out), "  {:<22} {}\n", recipe.name, recipe.summary);
    if (!own.empty()) fmt::format_to(std::back_inserter(out), "  {:<22}   {}\n", "", own);
  }
  return out;
}

std::string reports_text() {
  std::string out = "reports\n";
  for (const report::Writer& writer : report::writers())
    fmt::format_to(std::back_inserter(out), "  {:<12} {}\n", writer.name, writer.summary);
  return out;
}

std::string suites_text() {
  std::string out = "suites\n";
  for (const std::string& name : suite_names()) fmt::format_to(std::back_inserter(out), "  @{}\n", name);
  return out;
}

std::string devices_text() {
  return fmt::format("devices\n  {:<12} kernels for {}\n  {:<12} {}\n", "cpu",
                     kda::kernel_table().instruction_set, "gpu", cuda::device_text());
}

struct Section {
  const char* name;
  std::string (*text)();
};
constexpr Section sections[] = {{"variants", variants_text},     {"metrics", metrics_text},
                                {"arithmetic", arithmetic_text}, {"regimes", regimes_text},
                                {"reports", reports_text},       {"suites", suites_text},
                                {"devices", devices_text}};

constexpr char footer[] =
    "Examples:\n"
    "  kda-check list                   everything\n"
    "  kda-check list regimes           problems that TARGET can name, with their parameters\n"
    "  kda-check list devices           what this machine has; why a GPU cannot be used\n";

}  // namespace

std::vector<std::string> list_sections() {
  std::vector<std::string> names;
  for (const Section& section : sections) names.emplace_back(section.name);
  return names;
}

int list_main(const Words& words) {
  std::string chosen;
  const std::vector<std::string> names = list_sections();
  CLI::App app;
  prepare(app, "list", "What exists, and whether it can run here");
  app.footer(footer);
  app.add_option("section", chosen, join(names))->option_text("SECTION");
  if (const auto done = parse(app, words)) return *done;
  std::string out;
  for (const Section& section : sections)
    if (chosen.empty() || chosen == section.name) out += (out.empty() ? "" : "\n") + section.text();
  if (out.empty())
    throw Error(ErrorKind::usage, fmt::format("list: nothing called '{}'", chosen), {},
                suggest(chosen, names));
  write_stdout(out);
  return 0;
}

}  // namespace kda_check::cli

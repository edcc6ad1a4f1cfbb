#include <fmt/format.h>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/command.hpp"
#include "hypotheses/naming/faulty_output.hpp"
#include "judge/measures/metrics.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/gpu/device.hpp"
#include "kda/gpu/models.hpp"
#include "kda/kernels/table.hpp"
#include "kda/regimes/regimes.hpp"
#include "kda/variants/variants.hpp"
#include "plan/suite.hpp"
#include "report/writers.hpp"

namespace kda_check::cli {

namespace {

using report::Section;
using report::Show;

template <class Rows>
void add_rows(Section& section, const Rows& rows) {
  section.columns = {{"name", {}, Show::code}, {"summary", {}}};
  for (const auto& row : rows) section.add({std::string(row.name), std::string(row.summary)});
}

void variants(Section& section) {
  section.columns = {{"name", {}, Show::code}, {"summary", {}}, {"device", {}},
                     {"dtypes", {}},           {"passes", {}},  {"state", "on this machine"}};
  std::string dtypes;
  for (const numeric::Format& format : numeric::formats)
    dtypes += fmt::format("{}{}", dtypes.empty() ? "" : " ", format.name);
  for (const kda::Variant& variant : kda::variants()) {
    const std::string reason = variant.unavailable();
    section.add({std::string(variant.name), std::string(variant.summary), std::string(variant.device), dtypes,
                 std::string(variant.run_backward != nullptr ? "forward backward" : "forward"),
                 reason.empty() ? std::string("available") : reason});
  }
}

void metrics(Section& section) { add_rows(section, judge::metrics()); }

void arithmetic(Section& section) {
  section.columns = {{"key", {}, Show::code}, {"values", {}, Show::code}, {"summary", {}}};
  for (const kda::AxisDescription& axis : kda::axis_descriptions())
    section.add({axis.key, axis.values(), axis.summary});
}

void presets(Section& section) {
  section.columns = {{"name", {}, Show::code},
                     {"variant", {}, Show::code},
                     {"summary", "whose arithmetic"},
                     {"source", "read at"},
                     {"evidence", {}},
                     {"words", {}, Show::code}};
  for (const kda::Preset& preset : kda::presets())
    section.add({std::string(preset.name), std::string(preset.variant.empty() ? "any" : preset.variant),
                 std::string(preset.what), std::string(preset.source), std::string(preset.evidence),
                 std::string(preset.words)});
}

/// Their own parameters, and those whose default is their own.
void regimes(Section& section) {
  std::string shared;
  for (const kda::Parameter& parameter : kda::shared_parameters())
    shared += fmt::format("{}={} ", parameter.name, parameter.value);
  section.title = fmt::format("regimes  ({}dtype=fp32 unless stated)", shared);
  section.columns = {{"name", {}, Show::code}, {"parameters", {}, Show::code}, {"summary", {}}};
  for (const kda::Recipe& recipe : kda::recipes()) {
    std::string own;
    for (const kda::Parameter& parameter : recipe.parameters)
      own += fmt::format("{}{}={}", own.empty() ? "" : " ", parameter.name, parameter.value);
    section.add({std::string(recipe.name), own, std::string(recipe.summary)});
  }
}

void reports(Section& section) { add_rows(section, report::writers()); }

/// Hundreds: by name alone.
void faults(Section& section) {
  section.key = "known_faults";
  section.columns = {{"name", {}, Show::code}, {"summary", "as if"}};
  for (const auto& row : hypotheses::faults()) section.add({std::string(row.name), std::string(row.meaning)});
  for (const auto& row : hypotheses::gradient_faults()) section.add({row.name, row.meaning});
  for (const auto& row : hypotheses::pool_faults())
    section.add({std::string(row.name), std::string(row.what)});
}

void suites(Section& section) {
  section.columns = {{"name", {}, Show::code}};
  for (const std::string& name : plan::suite_names()) section.add({"@" + name});
}

void devices(Section& section) {
  section.columns = {{"name", {}, Show::code}, {"state", "on this machine"}};
  section.add({std::string("cpu"), fmt::format("kernels for {}", kda::kernel_table().instruction_set)});
  section.add({std::string("gpu"), kda::gpu_text()});
}

/// A row for each model of the GPU's arithmetic. One of a kind that another of it rules out has no verdict.
Section models(Progress& progress) {
  Section section;
  section.key = "models", section.title = "models of docs/arithmetic.md";
  section.tabular = true;
  section.columns = {{"name", {}, Show::code},
                     {"model", {}, Show::code},
                     {"inputs", {}, Show::count},
                     {"mismatches", {}, Show::count},
                     {"first", {}, Show::data}};
  Names wrong;
  for (const kda::ModelReading& reading :
       kda::read_models(kda::gpu_at_hand(), {}, [&](const std::string& text) { progress.show(text); })) {
    report::Entry& entry =
        section.add({reading.name, reading.model, static_cast<std::int64_t>(reading.inputs),
                     static_cast<std::int64_t>(reading.mismatches),
                     reading.first.empty() ? report::Value() : report::Value(reading.first)});
    if (reading.is_rejected) continue;
    entry.verdict = reading.holds() ? judge::Verdict::pass : judge::Verdict::fail;
    entry.reason = reading.first;
    if (!reading.holds()) wrong.push_back(fmt::format("{} ({})", reading.name, reading.model));
  }
  section.notes.push_back(wrong.empty() ? "all models of docs/arithmetic.md hold on this device"
                                        : "these do not hold on this device: " + join(wrong));
  return section;
}

struct Row {
  const char* name;
  void (*fill)(Section& section);
};
constexpr Row rows[] = {{"variants", variants}, {"metrics", metrics}, {"arithmetic", arithmetic},
                        {"presets", presets},   {"regimes", regimes}, {"reports", reports},
                        {"suites", suites},     {"devices", devices}, {"faults", faults}};

constexpr char list_footer[] = R"(Examples:
  kda-check list                   everything but faults
  kda-check list regimes           problems that TARGET can name, with their parameters
  kda-check list presets           kernels whose arithmetic kda-check has, with evidence
  kda-check list faults            what fault=NAME of a regime can be (docs/incidents.md)
  kda-check list devices           what this machine has; why a GPU cannot be used
  kda-check list devices --probe   which models of the GPU's arithmetic hold on it

Exit codes: 0; with --probe 1 when a model does not hold, 4 without a GPU.
)";

}  // namespace

Names list_sections() {
  Names names;
  for (const Row& row : rows) names.emplace_back(row.name);
  return names;
}

int list_main(const Words& words) {
  Names chosen;
  OutputOptions output;
  Parser parser("list", "What exists, and whether it can run here", list_footer);
  parser.positionals(chosen, "SECTION...", join(list_sections()).c_str());
  bool probe = false;
  parser.flag(
      "--probe", probe,
      "With devices: compare the GPU with the models of docs/arithmetic.md, its approximate functions on "
      "all inputs, its tensor cores on 10^7 sums of each format");
  add_output_options(parser, output);
  if (!parser.parse(words)) return 0;
  for (const std::string& name : chosen)
    if (const Names known = list_sections(); std::find(known.begin(), known.end(), name) == known.end())
      throw Error(ErrorKind::usage, fmt::format("list: nothing called '{}'", name), {}, suggest(name, known));
  const auto is_chosen = [&](std::string_view name) {
    return (chosen.empty() && name != "faults") ||
           std::find(chosen.begin(), chosen.end(), name) != chosen.end();
  };
  if (probe && !is_chosen("devices"))
    throw Error(ErrorKind::usage, "--probe is about devices", {}, "kda-check list devices --probe");
  return tell(words, output, {}, [&](Outputs&, Progress& progress, report::Document& document) {
    for (const Row& row : rows) {
      if (!is_chosen(row.name)) continue;
      Section section;
      section.key = section.title = row.name;
      section.tabular = true;
      row.fill(section);
      document.sections.push_back(std::move(section));
    }
    if (!probe) return;
    if (const std::string reason = kda::gpu_unavailable(); reason.empty())
      document.sections.push_back(models(progress));
    else
      document.failures.push_back(
          {fmt::format("--probe needs a GPU: {}", reason), exit_code(ErrorKind::environment), {}});
  });
}

}  // namespace kda_check::cli

#include "cli/option_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/names.hpp"
#include "cli/command.hpp"
#include "judge/measures/metrics.hpp"
#include "kda/arithmetic/arithmetic.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/regimes/regimes.hpp"
#include "kda/variants/variants.hpp"
#include "plan/power_classes.hpp"
#include "plan/requirements.hpp"
#include "plan/suite.hpp"
#include "report/writers.hpp"

namespace kda_check::cli {

namespace {

template <class Rows>
Names names_of(const Rows& rows, const char* suffix = "") {
  Names names;
  for (const auto& row : rows) names.push_back(fmt::format("{}{}", row.name, suffix));
  return names;
}

Names operator+(Names left, const Names& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Names variant_names(std::string_view command) {
  return names_of(kda::variants()) + (command == "bench" ? Names{"oracle"} : Names{});
}

Names dtype_names(std::string_view command) {
  Names names;
  for (const numeric::Format& format : numeric::formats) names.emplace_back(format.name);
  return names + (command == "bench" ? Names{} : Names{"fixture"});
}

Names arithmetic_words(std::string_view) {
  Names assignments;
  for (const kda::AxisDescription& axis : kda::axis_descriptions())
    for (std::string value : axis.names) {
      if (value.ends_with(":N") || value.ends_with(":X")) value.pop_back();  // a number to be typed
      assignments.push_back(fmt::format("{}={}", axis.key, value));
    }
  return names_of(kda::presets()) + assignments;
}

Names groups(std::string_view command) {
  return command == "run" ? Names{"oracle", "all", "replay", "none"} : Names{"oracle"};
}

Names targets(std::string_view command) {
  Names names = names_of(kda::recipes());
  if (command == "run")
    for (const std::string& suite : plan::suite_names()) names.push_back("@" + suite);
  return names;
}

Names required(std::string_view) {
  return Names(plan::devices().begin(), plan::devices().end()) + names_of(kda::variants());
}

struct Kind {
  std::string_view key;  ///< a flag, or what help calls the value of a positional
  Names (*words)(std::string_view command);
};
constexpr Kind kinds[] = {
    {"--variant", variant_names},
    {"--dtype", dtype_names},
    {"--arithmetic", arithmetic_words},
    {"--class", [](std::string_view) { return plan::power_classes(); }},
    {"--against", groups},
    {"--require", required},
    {"--between", variant_names},
    {"--tensor",
     [](std::string_view) {
       return kda::tensors_of(kda::Pass::forward) + kda::tensors_of(kda::Pass::backward);
     }},
    {"--limit", [](std::string_view) { return names_of(judge::metrics(), "="); }},
    {"--report", [](std::string_view) { return names_of(report::writers()); }},
    {"TARGET", targets},
    {"TARGET...", targets},
    {"REGIME", targets},
    {"SECTION...", [](std::string_view) { return list_sections(); }},
    {"SHELL", [](std::string_view) { return shell_names(); }},
};

OptionDescription with_words(OptionDescription option, std::string_view command) {
  const std::string key = option.flags.empty() ? option.value : option.flags.back();
  const Kind* const kind =
      std::find_if(std::begin(kinds), std::end(kinds), [&](const Kind& row) { return row.key == key; });
  if (kind != std::end(kinds)) option.words = kind->words(command);
  return option;
}

}  // namespace

std::vector<CommandDescription> option_tree() {
  std::vector<CommandDescription> tree;
  for (const Command& command : commands()) {
    CommandDescription description;
    description.name = command.name;
    description.summary = command.summary;
    description.is_hidden = command.group[0] == '\0';
    const ParserVisit visit([&](const Parser& parser) {
      description.text = parser.summary();
      description.footer = parser.footer();
      description.options.push_back({"Options", {"-h", "--help"}, "", "This text", {}});
      for (const OptionDescription& option : parser.options())
        description.options.push_back(with_words(option, command.name));
    });
    command.main({command.name});
    tree.push_back(std::move(description));
  }
  return tree;
}

}  // namespace kda_check::cli

#include "cli/option_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/suite.hpp"
#include "compare/metrics.hpp"
#include "kda/arithmetic.hpp"
#include "kda/regimes.hpp"
#include "kda/variants.hpp"
#include "report/writers.hpp"
#include "session/requirements.hpp"

namespace kda_check::cli {

namespace {

using Names = std::vector<std::string>;

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
  for (const numeric::Format& format : numeric::formats)
    if (std::any_of(kda::variants().begin(), kda::variants().end(),
                    [&](const kda::Variant& variant) { return variant.has_dtype(format.dtype); }))
      names.emplace_back(format.name);
  return names + (command == "bench" ? Names{} : Names{"fixture"});
}

Names arithmetic_words(std::string_view) {
  Names presets, assignments;
  for (const kda::AxisDescription& axis : kda::axis_descriptions()) {
    if (axis.summary == "preset") {
      presets.emplace_back(axis.key);
      continue;
    }
    // The values of storage have a grammar; its named ones come before it.
    const std::string_view values(axis.values);
    for (std::string value : split_commas(values.substr(0, values.find(", or ")))) {
      value.erase(0, value.find_first_not_of(' '));
      if (value.ends_with(":N") || value.ends_with(":X")) value.pop_back();  // a number to be typed
      assignments.push_back(fmt::format("{}={}", axis.key, value));
    }
  }
  return presets + assignments;
}

Names groups(std::string_view command) {
  return command == "run" ? Names{"oracle", "all", "replay"} : Names{"oracle"};
}

Names targets(std::string_view command) {
  Names names = names_of(kda::recipes());
  if (command == "run")
    for (const std::string& suite : suite_names()) names.push_back("@" + suite);
  return names;
}

Names required(std::string_view) {
  return Names(session::requirements().begin(), session::requirements().end());
}

struct Kind {
  std::string_view key;  ///< a flag, or what help calls the value of a positional
  Names (*words)(std::string_view command);
};
constexpr Kind kinds[] = {
    {"--variant", variant_names},
    {"--dtype", dtype_names},
    {"--arithmetic", arithmetic_words},
    {"--against", groups},
    {"--require", required},
    {"--between", variant_names},
    {"--tensor",
     [](std::string_view command) {
       return Names{"o"} + (command == "grow" ? Names{} : Names{"final_state"});
     }},
    {"--limit", [](std::string_view) { return names_of(compare::metrics(), "="); }},
    {"--report", [](std::string_view) { return names_of(report::writers()); }},
    {"TARGET", targets},
    {"TARGET...", targets},
    {"REGIME", targets},
    {"SECTION", [](std::string_view) { return list_sections(); }},
    {"SHELL", [](std::string_view) { return shell_names(); }},
};

/// "TEXT:{auto,always,never}", as CLI11 describes an option that takes one of a set.
Names members(const std::string& type_name) {
  const std::size_t open = type_name.find('{'), close = type_name.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return split_commas(std::string_view(type_name).substr(open + 1, close - open - 1));
}

OptionDescription described(const CLI::Option& option, std::string_view command) {
  OptionDescription result;
  for (const std::string& name : option.get_snames()) result.flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) result.flags.push_back("--" + name);
  result.value = option.get_option_text();
  result.text = option.get_description();
  const std::string key = result.flags.empty() ? result.value : result.flags.back();
  const Kind* const kind =
      std::find_if(std::begin(kinds), std::end(kinds), [&](const Kind& row) { return row.key == key; });
  result.words = kind == std::end(kinds) ? members(option.get_type_name()) : kind->words(command);
  const auto says = [&](const char* word) { return result.value.find(word) != std::string::npos; };
  result.optional_value = result.value.starts_with("[");
  result.is_list = !result.flags.empty() && says(",");
  result.is_path = says("FILE") || says("PATH") || says("TARGET");
  return result;
}

}  // namespace

std::vector<CommandDescription> option_tree() {
  std::vector<CommandDescription> tree;
  for (const Command& command : commands()) {
    CommandDescription description;
    description.name = command.name;
    description.summary = command.summary;
    description.is_hidden = command.is_hidden;
    const ParserVisit visit([&](const CLI::App& app) {
      description.text = app.get_description();
      description.footer = app.get_footer();
      for (const CLI::Option* const option : app.get_options())
        description.options.push_back(described(*option, command.name));
    });
    command.main({command.name});
    tree.push_back(std::move(description));
  }
  return tree;
}

}  // namespace kda_check::cli

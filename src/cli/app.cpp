#include "cli/app.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "report/version.hpp"

namespace kda_check::cli {

namespace {

constexpr Command table[] = {
    {"run", "run variants on fixtures or regimes, compare with the oracle and the recorded answers, judge",
     run_main},
    {"diff", "compare the tensors of two files, or of two groups of expected answers", diff_main},
    {"forecast", "what the inputs say about each formulation, before any kernel runs", forecast_main},
    {"attribute", "how much of an error each axis of the arithmetic and each stage makes", attribute_main},
    {"grow", "how the error of every answer goes along T", grow_main},
    {"history", "compare the JSON reports of several commits, number by number", history_main},
    {"show", "what a fixture holds", show_main},
    {"make", "write a regime - a problem on which formulations fail - as a fixture", make_main},
    {"capture", "run variants and store what they answer in a fixture", capture_main},
    {"list", "variants, metrics, arithmetic, regimes, reports, suites, devices", list_main},
    {"selftest", "can the gate fail? wrong kernels must be caught, healthy ones pass", selftest_main},
    {"bench", "speed of the variants and the oracle", bench_main},
    {"completions", "what a shell needs to complete commands, options and names", completions_main},
    {"man", "the manual page", man_main, true},
};

std::string help_text() {
  std::string out =
      "kda-check: verifies the numerics of Kimi Delta Attention kernels\n\nusage: kda-check COMMAND "
      "[OPTIONS]\n\n";
  std::size_t width = 0;
  for (const Command& command : table) width = std::max(width, std::string_view(command.name).size());
  for (const Command& command : table)
    if (!command.is_hidden)
      fmt::format_to(std::back_inserter(out), "  {:<{}} {}\n", command.name, width, command.summary);
  return out +
         "\nkda-check COMMAND --help explains a command; kda-check --version prints the version.\nStart "
         "with: kda-check run FILE.h5\n";
}

}  // namespace

std::span<const Command> commands() { return table; }

namespace {

int called_with(const Words& words) {
  if (words.empty()) throw Error(ErrorKind::usage, "no command given", {}, "kda-check --help");
  if (words.front() == "help" && words.size() == 2) return called_with({words[1], "--help"});
  if (words.front() == "--help" || words.front() == "-h" || words.front() == "help") {
    write_stdout(help_text());
    return 0;
  }
  if (words.front() == "--version") {
    write_stdout(fmt::format("kda-check {}\n", version));
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : table) {
    if (words.front() == command.name) return command.main(words);
    if (!command.is_hidden) names.emplace_back(command.name);
  }
  throw Error(ErrorKind::usage, fmt::format("no command '{}'", words.front()), {},
              suggest(words.front(), names));
}

}  // namespace

int app_main(int argc, char** argv) { return called_with(Words(argv + 1, argv + argc)); }

}  // namespace kda_check::cli

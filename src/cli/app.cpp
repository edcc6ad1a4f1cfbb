#include "cli/app.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

#include "base/append.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/names.hpp"
#include "base/output_file.hpp"
#include "base/version.hpp"
#include "cli/command.hpp"
#include "cli/progress.hpp"
#include "cli/serve.hpp"

namespace kda_check::cli {

namespace {

constexpr Command table[] = {
    {"run", "Judge", "run variants, compare them and recorded outputs with the truth, judge", run_main},
    {"diff", "Judge", "compare the tensors of two files, or of two recorded outputs", diff_main},
    {"explain", "Judge", "which computation gives an output, what each setting costs, what is wrong",
     explain_main},
    {"merge", "In CI", "join the reports of the shards of one run", merge_main},
    {"selftest", "In CI", "prove that wrong kernels are caught and healthy ones pass", selftest_main},
    {"power", "In CI", "how large a fault must be to be seen, by twins and by limits", power_main},
    {"make", "Make", "write a regime - a problem on which formulations fail - as a fixture", make_main},
    {"capture", "Make", "run variants and store their outputs in a fixture", capture_main},
    {"show", "Look", "what a fixture holds", show_main},
    {"list", "Look", "variants, metrics, arithmetic, presets, regimes, reports, suites, devices", list_main},
    {"bench", "Look", "speed of the variants and the oracle", bench_main},
    {"completions", "Look", "what a shell needs to complete commands, options and names", completions_main},
    {"man", "", "the manual page", man_main},
};

std::string help_text() {
  std::string out =
      "kda-check: verifies the numerics of Kimi Delta Attention kernels\n\nusage: kda-check COMMAND "
      "[OPTIONS]\n";
  std::size_t width = 0;
  for (const Command& command : table) width = std::max(width, std::string_view(command.name).size());
  std::string_view group;
  for (const Command& command : table) {
    if (command.group[0] == '\0') continue;
    if (group != command.group) append(out, "\n{}\n", command.group);
    group = command.group;
    append(out, "  {:<{}} {}\n", command.name, width, command.summary);
  }
  return out +
         "\nkda-check COMMAND --help explains a command; kda-check --version prints the version.\nStart "
         "with: kda-check run FILE.h5\n";
}

int report(ErrorKind kind, const char* text) {
  std::fflush(stdout);
  write_stderr(fmt::format("kda-check: error: {}\n", printable(text)));
  return exit_code(kind);
}

}  // namespace

std::span<const Command> commands() { return table; }

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
  if (words.front() == "serve") return serve(words);  // for the Python package alone
  Names names;
  for (const Command& command : table) {
    if (words.front() == command.name) return command.main(words);
    if (command.group[0] != '\0') names.emplace_back(command.name);
  }
  throw Error(ErrorKind::usage, fmt::format("no command '{}'", words.front()), {},
              suggest(words.front(), names));
}

int guarded(const std::function<int()>& work) {
  try {
    return work();
  } catch (const Interrupted& interrupted) {
    end_by_signal(interrupted.signal);
  } catch (const Error& error) {
    return report(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ErrorKind::environment,
                  "out of memory; hint: smaller fixtures, a smaller shape or fewer --threads");
  } catch (const std::exception& error) {
    return report(
        ErrorKind::internal,
        fmt::format("a bug in kda-check: {}; hint: please report it with the command line", error.what())
            .c_str());
  }
}

}  // namespace kda_check::cli

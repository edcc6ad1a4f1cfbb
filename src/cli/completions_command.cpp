#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "cli/commands.hpp"
#include "cli/completions.hpp"

namespace kda_check::cli {

namespace {

constexpr char footer[] =
    "Nothing of kda-check runs while one types: the names of variants, regimes, suites and the like are "
    "those\n"
    "of the program that wrote the script.\n"
    "\n"
    "Examples:\n"
    "  source <(kda-check completions bash)                              in this shell; in ~/.bashrc for "
    "all\n"
    "  kda-check completions bash > ~/.local/share/bash-completion/completions/kda-check\n"
    "  kda-check completions zsh > ~/.zfunc/_kda-check                   in a folder of $fpath\n"
    "  kda-check completions fish > ~/.config/fish/completions/kda-check.fish\n";

struct Shell {
  const char* name;
  std::string (*script)(const std::vector<CommandDescription>& tree);
};
constexpr Shell shells[] = {{"bash", bash_completions}, {"zsh", zsh_completions}, {"fish", fish_completions}};

}  // namespace

std::vector<std::string> shell_names() {
  std::vector<std::string> names;
  for (const Shell& shell : shells) names.emplace_back(shell.name);
  return names;
}

int completions_main(const Words& words) {
  std::string chosen;
  CLI::App app;
  prepare(app, "completions", "What a shell needs to complete commands, options and names");
  app.footer(footer);
  app.add_option("shell", chosen, join(shell_names()))->required()->option_text("SHELL");
  if (const auto done = parse(app, words)) return *done;
  for (const Shell& shell : shells) {
    if (chosen != shell.name) continue;
    write_stdout(shell.script(option_tree()));
    return 0;
  }
  throw Error(ErrorKind::usage, fmt::format("completions: no shell '{}'", chosen), {},
              suggest(chosen, shell_names()));
}

int man_main(const Words& words) {
  CLI::App app;
  prepare(app, "man", "The manual page, in the macros of man(7)");
  app.footer(
      "Examples:\n  kda-check man > kda-check.1\n  kda-check man | man -l -                          to read "
      "it\n");
  if (const auto done = parse(app, words)) return *done;
  write_stdout(manual_page(option_tree()));
  return 0;
}

}  // namespace kda_check::cli

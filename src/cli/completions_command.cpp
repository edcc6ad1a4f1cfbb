#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/output_file.hpp"
#include "cli/command.hpp"
#include "cli/completions.hpp"

namespace kda_check::cli {

namespace {

constexpr char completions_footer[] =
    R"(The script does not run kda-check while you type: it has the names of variants, regimes, suites and the like of the
program that wrote it.

Examples:
  source <(kda-check completions bash)                              in this shell; in ~/.bashrc for all
  kda-check completions bash > ~/.local/share/bash-completion/completions/kda-check
  kda-check completions zsh > ~/.zfunc/_kda-check                   in a folder of $fpath
  kda-check completions fish > ~/.config/fish/completions/kda-check.fish
)";

constexpr char man_footer[] = R"(Examples:
  kda-check man > kda-check.1
  kda-check man | man -l -                          to read it
)";

struct Shell {
  const char* name;
  std::string (*script)(const std::vector<CommandDescription>& tree);
};
constexpr Shell shells[] = {{"bash", bash_completions}, {"zsh", zsh_completions}, {"fish", fish_completions}};

}  // namespace

Names shell_names() {
  Names names;
  for (const Shell& shell : shells) names.emplace_back(shell.name);
  return names;
}

int completions_main(const Words& words) {
  std::string chosen;
  Parser parser("completions", "What a shell needs to complete commands, options and names",
                completions_footer);
  parser.positional(chosen, "SHELL", join(shell_names()).c_str());
  if (!parser.parse(words)) return 0;
  for (const Shell& shell : shells) {
    if (chosen != shell.name) continue;
    write_stdout(shell.script(option_tree()));
    return 0;
  }
  throw Error(ErrorKind::usage, fmt::format("completions: no shell '{}'", chosen), {},
              suggest(chosen, shell_names()));
}

int man_main(const Words& words) {
  Parser parser("man", "The manual page, in the macros of man(7)", man_footer);
  if (!parser.parse(words)) return 0;
  write_stdout(manual_page(option_tree()));
  return 0;
}

}  // namespace kda_check::cli

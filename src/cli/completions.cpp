#include "cli/completions.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/append.hpp"
#include "base/names.hpp"
#include "base/shell_text.hpp"

namespace kda_check::cli {

namespace {

using Tree = std::vector<CommandDescription>;

template <class Use>
void for_each_flag(const CommandDescription& command, Use use) {
  for (const OptionDescription& option : command.options)
    for (const std::string& flag : option.flags) use(option, flag);
}

std::string command_names(const Tree& tree) {
  std::string names = "--help --version help";
  for (const CommandDescription& command : tree)
    if (!command.is_hidden) names += " " + command.name;
  return names;
}

const OptionDescription* positional_of(const CommandDescription& command) {
  for (const OptionDescription& option : command.options)
    if (option.flags.empty()) return &option;
  return nullptr;
}

/// `name words is_list is_path` as assignments of the shell.
std::string assignments(const OptionDescription& option) {
  return fmt::format("words={}{}{}", shell_quoted(join(option.words, " ")), option.is_list ? " list=1" : "",
                     option.is_path ? " files=1" : "");
}

/// The cases of a `case $command:$previous`: what may follow a flag.
std::string value_cases(const Tree& tree, const char* indent) {
  std::string out;
  for (const CommandDescription& command : tree)
    for_each_flag(command, [&](const OptionDescription& option, const std::string& flag) {
      if (option.value.empty()) return;
      append(out, "{}{}:{}) {}{} ;;\n", indent, command.name, flag, assignments(option),
             option.optional_value ? " optional=1" : "");
    });
  return out;
}

std::string flag_list(const CommandDescription& command) {
  std::vector<std::string> flags;
  for_each_flag(command, [&](const OptionDescription&, const std::string& flag) { flags.push_back(flag); });
  return join(flags, " ");
}

/// The cases of a `case $command`: its flags, and what else it takes.
std::string command_cases(const Tree& tree, const char* indent) {
  std::string out;
  for (const CommandDescription& command : tree) {
    const OptionDescription* const positional = positional_of(command);
    append(out, "{}{}) flags={} {} ;;\n", indent, command.name, shell_quoted(flag_list(command)),
           positional ? assignments(*positional) : "");
  }
  return out;
}

}  // namespace

std::string one_line(const std::string& text) {
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

// The words are taken from the line itself: bash would split them at '=', ':' and '@'.
std::string bash_completions(const Tree& tree) {
  return fmt::format(R"(# Completion of kda-check for bash. Written by: kda-check completions bash
_kda_check() {{
  local line=${{COMP_LINE:0:COMP_POINT}} current previous command kept prefix=
  local typed words= flags= list= files= optional= word
  read -ra typed <<<"$line"
  [[ $line == *[[:space:]] ]] && typed+=("")
  current=${{typed[-1]}}
  COMPREPLY=()
  if (( ${{#typed[@]}} <= 2 )); then
    COMPREPLY=($(compgen -W {0} -- "$current"))
    return
  fi
  command=${{typed[1]}} previous=${{typed[-2]}}
  if [[ $command == help ]]; then
    COMPREPLY=($(compgen -W {0} -- "$current"))
    return
  fi
  if [[ $current == --*=* ]]; then
    previous=${{current%%=*}} prefix=${{current%%=*}}=
  fi
  case $command:$previous in
{1}    *) previous= ;;
  esac
  if [[ -z $previous || ( -n $optional && -z $prefix ) ]]; then
    case $command in
{2}    esac
    [[ $current == -* ]] && words=$flags files= list=
  fi
  local value=${{current#"$prefix"}}
  if [[ -n $list && $value == *,* ]]; then
    prefix+=${{value%,*}},
    value=${{value##*,}}
  fi
  local found=($(compgen -W "$words" -- "$value"))
  if [[ -n $files ]]; then
    local IFS=$'\n'
    found+=($(compgen -f -- "$value"))
    compopt -o filenames 2>/dev/null
    unset IFS
  fi
  # What the shell replaces begins behind the last of its own word breaks.
  kept=${{current%"${{current##*["$COMP_WORDBREAKS"]}}"}}
  for word in "${{found[@]}}"; do
    word=$prefix$word
    COMPREPLY+=("${{word#"$kept"}}")
  done
  if (( ${{#COMPREPLY[@]}} == 1 )) && [[ ${{COMPREPLY[0]}} == *[=:] ]]; then
    compopt -o nospace 2>/dev/null
  fi
}}
complete -F _kda_check kda-check
)",
                     shell_quoted(command_names(tree)), value_cases(tree, "    "),
                     command_cases(tree, "      "));
}

std::string zsh_completions(const Tree& tree) {
  std::string described;
  for (const CommandDescription& command : tree)
    if (!command.is_hidden)
      described += "    " + shell_quoted(command.name + ":" + one_line(command.summary)) + "\n";
  std::string flags;
  for (const CommandDescription& command : tree) {
    flags += "    " + command.name + ") options=(\n";
    for_each_flag(command, [&](const OptionDescription& option, const std::string& flag) {
      flags += "      " + shell_quoted(flag + ":" + one_line(option.text)) + "\n";
    });
    flags += "    ) ;;\n";
  }
  return fmt::format(R"(#compdef kda-check
# Completion of kda-check for zsh. Written by: kda-check completions zsh
_kda_check() {{
  local command=$words[2] previous=$words[CURRENT-1] values= flags= list= files= optional=
  local -a commands options
  commands=(
{0}  )
  if (( CURRENT == 2 )) || [[ $command == help ]]; then
    _describe command commands
    return
  fi
  case $command in
{1}  esac
  if [[ $PREFIX == --*=* ]]; then
    previous=${{PREFIX%%=*}}
    compset -P 1 '*='
    optional=
  fi
  if ! _kda_check_value $command:$previous || [[ -n $optional && $PREFIX == -* ]]; then
    if [[ $PREFIX == -* ]]; then
      _describe -o option options
      return
    fi
    _kda_check_positional $command
  fi
  [[ -n $list ]] && compset -P '*,'
  [[ -n $values ]] && compadd -q -S '' -- ${{(M)${{=values}}:#*[=:]}}
  [[ -n $values ]] && compadd -- ${{${{=values}}:#*[=:]}}
  [[ -n $files ]] && _files
}}
_kda_check_value() {{
  local words=
  case $1 in
{2}    *) return 1 ;;
  esac
  values=$words
}}
_kda_check_positional() {{
  local words=
  case $1 in
{3}  esac
  values=$words
}}
if [[ $funcstack[1] == _kda-check ]]; then
  _kda_check "$@"
else
  compdef _kda_check kda-check
fi
)",
                     described, flags, value_cases(tree, "    "), command_cases(tree, "    "));
}

std::string fish_completions(const Tree& tree) {
  std::string out = R"(# Completion of kda-check for fish. Written by: kda-check completions fish
function __kda_check_list
  set -l before (commandline -ct | string replace -r '^--[^=]*=' '' | string replace -r '[^,]*$' '')
  printf "$before%s\n" $argv
end
complete -c kda-check -f
)";
  const auto rule = [&](const std::string& condition, const std::string& rest) {
    out += fmt::format("complete -c kda-check -n {}{}\n", shell_quoted(condition), rest);
  };
  for (const CommandDescription& command : tree) {
    if (command.is_hidden) continue;
    rule("__fish_use_subcommand", " -a " + command.name + " -d " + shell_quoted(one_line(command.summary)));
    const std::string chosen = "__fish_seen_subcommand_from " + command.name;
    for (const OptionDescription& option : command.options) {
      std::string words;
      for (const std::string& flag : option.flags)
        words += flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1);
      if (!option.flags.empty() && !option.value.empty() && !option.optional_value) words += " -r";
      if (option.is_path) words += " -F";
      const std::string names = join(option.words, " ");
      if (option.is_list && !names.empty()) {
        words += " -a " + shell_quoted("(__kda_check_list " + names + ")");
      } else if (!names.empty()) {
        words += " -a " + shell_quoted(names);
      }
      if (!option.flags.empty()) words += " -d " + shell_quoted(one_line(option.text));
      if (!words.empty()) rule(chosen, words);
    }
  }
  return out;
}

}  // namespace kda_check::cli

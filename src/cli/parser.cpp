#include "cli/parser.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/output_file.hpp"
#include "plan/target.hpp"

namespace kda_check::cli {

namespace {

/// Of the ParserVisit that lives; commands are called by one thread.
std::function<void(const Parser&)> parser_visitor;

constexpr auto take_all = CLI::MultiOptionPolicy::TakeAll;

}  // namespace

struct Parser::Behind {
  /// What may come without a value: its flag, the word that stands for none, and whether '=' must be there.
  struct Optional {
    std::vector<std::string> flags;
    std::string alone;
    bool needs_equals;
  };
  CLI::App app;
  std::vector<Optional> optional;

  /// The same words, every optional value behind '='.
  Words with_values(const Words& words) const {
    Words result;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] == "--") {
        result.insert(result.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
        break;
      }
      const auto found = std::ranges::find_if(optional, [&](const Optional& option) {
        return std::ranges::find(option.flags, words[i]) != option.flags.end();
      });
      if (found == optional.end()) {
        result.push_back(words[i]);
        continue;
      }
      // An empty word is an empty value: of a variable that is not set.
      const bool has_next = !found->needs_equals && i + 1 < words.size() &&
                            (words[i + 1] == "-" || !words[i + 1].starts_with('-')) &&
                            !plan::looks_like_a_target(words[i + 1]);
      result.push_back(words[i] + "=" + (has_next ? words[i + 1] : found->alone));
      i += has_next;
    }
    return result;
  }

  std::vector<std::string> option_names() const {
    std::vector<std::string> names;
    for (const CLI::Option* const option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
  }

  CLI::Option* add(const OptionDescription& description, const char* flags, CLI::callback_t callback) {
    CLI::Option* const option = app.add_option(flags, std::move(callback), description.text);
    option->option_text(description.value)->group(description.group);
    return option;
  }
};

namespace {

[[noreturn]] void refuse_empty(const std::string& flag) {
  throw Error(ErrorKind::usage, fmt::format("{}: an empty value", flag), {},
              "is a variable not set? leave the option out to do without it");
}

/// What CLI11 hands to a callback, each value taken on its own. Errors of ours pass through it.
CLI::callback_t each(std::string flag, Parser::Take take, bool repeatable) {
  return [flag = std::move(flag), take = std::move(take), repeatable](const CLI::results_t& results) {
    if (results.size() > 1 && !repeatable)
      throw Error(ErrorKind::usage, fmt::format("{} is given {} times", flag, results.size()), {},
                  "it has one value");
    for (const std::string& result : results) {
      if (result.empty()) refuse_empty(flag);
      take(result);
    }
    return true;
  };
}

/// An option that wants a value is not the last word, nor followed by another option, and no value is empty.
void check_values(const std::vector<OptionDescription>& options, const Words& words) {
  const auto option_of = [&](const std::string& word) {
    const auto has_flag = [&](const OptionDescription& option) {
      return std::ranges::find(option.flags, word) != option.flags.end();
    };
    return std::ranges::find_if(options, has_flag);
  };
  for (std::size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const bool ends_in_equals = words[i].starts_with("--") && words[i].ends_with("=");
    const std::string flag = words[i].substr(0, words[i].size() - ends_in_equals);
    const auto option = option_of(flag);
    if (option == options.end() || option->value.empty()) continue;
    if (ends_in_equals) refuse_empty(flag);
    if (option->optional_value) {
      if (i + 1 < words.size() && words[i + 1].empty()) refuse_empty(flag);
      continue;
    }
    if (i + 1 == words.size() || option_of(words[i + 1]) != options.end())
      throw Error(ErrorKind::usage, fmt::format("{}: no value", words[i]), {},
                  fmt::format("{} {}", words[i], option->value));
    ++i;
  }
}

std::string long_name(const OptionDescription& option) {
  return option.flags.empty() ? option.value : option.flags.back();
}

}  // namespace

Names split_names(const std::string& text) {
  Names names{""};
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == ',' || text[i + 1] == '\\'))
      names.back() += text[++i];
    else if (text[i] == ',')
      names.emplace_back();
    else
      names.back() += text[i];
  }
  return names;
}

Parser::Parser(const char* command, const char* summary, const char* footer)
    : command_(command), summary_(summary), footer_(footer), behind_(std::make_unique<Behind>()) {
  CLI::App& app = behind_->app;
  app.description(summary);
  app.footer(footer);
  app.name(fmt::format("kda-check {}", command));
  app.set_help_flag("-h,--help", "This text");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  group("Options");
}

Parser::~Parser() = default;

void Parser::group(const char* heading) { group_ = heading; }

OptionDescription& Parser::described(const char* flags, const char* value, const std::string& text) {
  OptionDescription& option = options_.emplace_back();
  option.group = group_;
  if (flags != nullptr) option.flags = split_commas(flags);
  option.value = value;
  option.text = text;
  const auto says = [&](const char* word) { return option.value.find(word) != std::string::npos; };
  option.is_path = says("FILE") || says("PATH") || says("TARGET");
  return option;
}

void Parser::positional(std::string& target, const char* value, const char* text) {
  described(nullptr, value, text);
  behind_->app.add_option(value, target, text)->required()->option_text(" ");
}

void Parser::positionals(Names& targets, const char* value, const char* text) {
  described(nullptr, value, text);
  std::string name(value);  // CLI11 puts dots behind it itself
  name.resize(name.find_last_not_of('.') + 1);
  behind_->app.add_option(name, targets, text)->option_text(" ")->multi_option_policy(take_all);
}

void Parser::flag(const char* flags, bool& target, const char* text) {
  described(flags, "", text);
  behind_->app.add_flag(flags, target, text)
      ->group(group_)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void Parser::flag(const char* flags, std::function<void()> act, const char* text) {
  described(flags, "", text);
  behind_->app.add_flag_callback(flags, std::move(act), text)->group(group_);
}

void Parser::value(const char* flags, const char* value, Take take, const std::string& text) {
  const OptionDescription& option = described(flags, value, text);
  behind_->add(option, flags, each(long_name(option), std::move(take), /*repeatable=*/false))
      ->expected(1)
      ->multi_option_policy(take_all);
}

void Parser::value(const char* flags, const char* value_name, std::string& target, const std::string& text) {
  value(
      flags, value_name, [&target](const std::string& given) { target = given; }, text);
}

void Parser::number(const char* flags, std::size_t least, std::size_t most,
                    std::function<void(std::size_t)> take, const std::string& text) {
  const std::string name = split_commas(flags).back();
  value(
      flags, "N",
      [=, take = std::move(take)](const std::string& given) {
        std::size_t number = 0;
        const auto [end, failure] = std::from_chars(given.data(), given.data() + given.size(), number);
        if (failure != std::errc{} || end != given.data() + given.size() || number < least || number > most)
          throw Error(ErrorKind::usage,
                      fmt::format("{} {}: wanted a whole number from {} to {}", name, given, least, most));
        take(number);
      },
      text);
}

void Parser::figure(const char* flags, std::optional<double>& target, const std::string& text) {
  value(
      flags, "X",
      [&target, name = std::string(flags)](const std::string& given) {
        double number = 0;
        const auto [end, failure] = std::from_chars(given.data(), given.data() + given.size(), number);
        if (failure != std::errc{} || end != given.data() + given.size() || !std::isfinite(number) ||
            number < 0)
          throw Error(ErrorKind::usage, fmt::format("{} {}: wanted a number >= 0", name, given));
        target = number;
      },
      text);
}

void Parser::choice(const char* flags, const char* value_name, const Names& words, Take take,
                    const std::string& text) {
  value(
      flags, value_name,
      [words, take = std::move(take), name = std::string(flags)](const std::string& given) {
        if (std::ranges::find(words, given) == words.end())
          throw Error(ErrorKind::usage, fmt::format("{}: no word '{}'", name, given), {},
                      suggest(given, words));
        take(given);
      },
      text);
  options_.back().words = words;
}

void Parser::names(const char* flags, const char* value_name, std::function<void(Names)> take,
                   const std::string& text) {
  auto all = std::make_shared<Names>();
  repeated(
      flags, value_name,
      [all, take = std::move(take), name = std::string(flags)](const std::string& given) {
        for (std::string& word : split_names(given)) {
          if (word.empty()) throw Error(ErrorKind::usage, fmt::format("{} '{}': an empty name", name, given));
          all->push_back(std::move(word));
        }
        take(*all);
      },
      text);
  options_.back().is_list = true;
}

void Parser::repeated(const char* flags, const char* value_name, Take take, const std::string& text) {
  const OptionDescription& option = described(flags, value_name, text);
  behind_->add(option, flags, each(long_name(option), std::move(take), /*repeatable=*/true))
      ->expected(1)
      ->multi_option_policy(take_all);
}

void Parser::optional_value(const char* flags, const char* value_name, const char* alone, bool needs_equals,
                            Take take, const std::string& text) {
  value(flags, value_name, std::move(take), text);
  options_.back().optional_value = true;
  behind_->optional.push_back({options_.back().flags, alone, needs_equals});
}

bool Parser::parse(const Words& words) {
  if (parser_visitor) {
    parser_visitor(*this);
    return false;
  }
  check_values(options_, words);
  try {
    // CLI11 takes the words in reverse.
    const Words given = behind_->with_values(words);
    std::vector<std::string> reversed(given.rbegin(), given.rend() - 1);
    behind_->app.parse(std::move(reversed));
    return true;
  } catch (const CLI::CallForHelp&) {
    write_stdout(behind_->app.help());
    return false;
  } catch (const CLI::ExtrasError&) {
    std::string hint, unknown;
    for (const std::string& word : behind_->app.remaining()) {
      if (word.empty() || word[0] != '-') continue;
      unknown = word.substr(0, word.find('='));
      hint = suggest(unknown, behind_->option_names());
      break;
    }
    if (unknown.empty())
      throw Error(ErrorKind::usage,
                  fmt::format("{}: unexpected '{}'", command_, join(behind_->app.remaining(), " ")));
    if (!hint.starts_with("did")) hint = fmt::format("kda-check {} --help", command_);
    throw Error(ErrorKind::usage, fmt::format("{}: no option '{}'", command_, unknown), {}, hint);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::usage, fmt::format("{}: {}", command_, error.what()), {},
                fmt::format("kda-check {} --help", command_));
  }
}

ParserVisit::ParserVisit(std::function<void(const Parser&)> visitor) { parser_visitor = std::move(visitor); }
ParserVisit::~ParserVisit() { parser_visitor = nullptr; }

}  // namespace kda_check::cli

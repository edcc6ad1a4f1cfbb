// The options of one command: what they are called, what they take, where it goes. CLI11 is behind it, and
// seen by parser.cpp alone.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/words.hpp"

namespace kda_check::cli {

using plan::Words;
using Names = std::vector<std::string>;

/// An option, or a positional, for help, completions and the manual page.
struct OptionDescription {
  std::string group;               ///< heading in the help
  std::vector<std::string> flags;  ///< "-q", "--quiet"; empty: a positional
  std::string value;               ///< what help calls its value, "NAME,..."; empty: it takes none
  std::string text;                ///< lines of help
  Names words;                     ///< the words it takes; empty: anything. After '=' and ':' a value goes on
  bool optional_value = false;     ///< "--json" alone is allowed
  bool is_list = false;            ///< words between commas
  bool is_path = false;            ///< names of files too
};

class Parser {
 public:
  using Take = std::function<void(const std::string&)>;

  /// `footer`: what its help ends with: details, examples, exit codes.
  Parser(const char* command, const char* summary, const char* footer);
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser();

  /// Of the options added from now on.
  void group(const char* heading);

  void positional(std::string& target, const char* value, const char* text);  ///< required
  void positionals(Names& targets, const char* value, const char* text);
  /// "-q,--quiet"
  void flag(const char* flags, bool& target, const char* text);
  void flag(const char* flags, std::function<void()> act, const char* text);
  /// One value, not empty, given once. `take` throws Error{usage}.
  void value(const char* flags, const char* value, Take take, const std::string& text);
  void value(const char* flags, const char* value, std::string& target, const std::string& text);
  /// A whole number of a range.
  void number(const char* flags, std::size_t least, std::size_t most, std::function<void(std::size_t)> take,
              const std::string& text);
  /// A finite number >= 0.
  void figure(const char* flags, std::optional<double>& target, const std::string& text);
  /// One of a few words.
  void choice(const char* flags, const char* value, const Names& words, Take take, const std::string& text);
  /// One item of an enumeration, by the words of all, in their order.
  template <class Enum>
  void choice(const char* flags, const char* value, std::span<const std::string_view> words,
              std::optional<Enum>& target, const std::string& text) {
    const Take take = [words, &target](const std::string& given) {
      target = static_cast<Enum>(std::ranges::find(words, given) - words.begin());
    };
    choice(flags, value, Names(words.begin(), words.end()), take, text);
  }
  /// Names between commas, repeatable; a comma behind a backslash is part of a name.
  void names(const char* flags, const char* value, std::function<void(Names)> take, const std::string& text);
  /// A value each time it is given.
  void repeated(const char* flags, const char* value, Take take, const std::string& text);
  /// A value that may be left out, `alone` then. After a blank it is taken unless it is an option or looks
  /// like a target; with `needs_equals` only behind '='.
  void optional_value(const char* flags, const char* value, const char* alone, bool needs_equals, Take take,
                      const std::string& text);

  /// The command's name first. False: the help was printed, nothing is to be done. Throws Error{usage} with a
  /// suggestion for an unknown option. While a ParserVisit lives: hands over the descriptions and returns
  /// false.
  bool parse(const Words& words);

  const std::string& summary() const { return summary_; }
  const std::string& footer() const { return footer_; }
  const std::vector<OptionDescription>& options() const { return options_; }

 private:
  struct Behind;
  OptionDescription& described(const char* flags, const char* value, const std::string& text);

  std::string command_, summary_, footer_, group_;
  std::vector<OptionDescription> options_;
  std::unique_ptr<Behind> behind_;
};

/// How completions and the manual page learn what the options are.
class ParserVisit {
 public:
  explicit ParserVisit(std::function<void(const Parser&)> visitor);
  ParserVisit(const ParserVisit&) = delete;
  ParserVisit& operator=(const ParserVisit&) = delete;
  ~ParserVisit();
};

/// "a,b\,c": a and "b,c". Empty names are refused by whoever takes the list.
Names split_names(const std::string& text);

}  // namespace kda_check::cli

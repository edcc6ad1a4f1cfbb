// What all commands share of parsing.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/parallel.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "session/requirements.hpp"

namespace kda_check::cli {

namespace {

/// Of the ParserVisit that lives; commands are called by one thread.
std::function<void(const CLI::App&)> parser_visitor;

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// "8G" to bytes; nullopt when it is not a size.
std::optional<std::size_t> size_in_bytes(const std::string& text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || !(value > 0)) return std::nullopt;
  const std::string unit(end, text.data() + text.size());
  for (const auto& [suffix, factor] :
       {std::pair{"", 1.0}, {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}})
    if (unit == suffix && value * factor < 0x1p62) return static_cast<std::size_t>(value * factor);
  return std::nullopt;
}

/// "did you mean 'always'?" for what CLI11 says of a word that is none of a set: "--color: alwys not in
/// {auto,always,never}"; empty for any other message, or where nothing is near.
std::string nearest_member(const std::string& message) {
  constexpr std::string_view mark = " not in {";
  const std::size_t colon = message.find(": "), at = message.find(mark), end = message.find('}', at);
  if (colon == std::string::npos || at == std::string::npos || end == std::string::npos || at < colon + 2)
    return {};
  const std::size_t first = at + mark.size();
  const std::string hint =
      suggest(message.substr(colon + 2, at - colon - 2), split_commas(message.substr(first, end - first)));
  return hint.starts_with("did") ? hint : std::string();
}

}  // namespace

ParserVisit::ParserVisit(std::function<void(const CLI::App&)> visitor) {
  parser_visitor = std::move(visitor);
}
ParserVisit::~ParserVisit() { parser_visitor = nullptr; }

void prepare(CLI::App& app, const char* name, const char* summary) {
  app.description(summary);
  app.name(std::string("kda-check ") + name);
  app.set_help_flag("-h,--help", "This text");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

std::optional<int> parse(CLI::App& app, const Words& words) {
  if (parser_visitor) {
    parser_visitor(app);
    return 0;
  }
  try {
    // CLI11 takes the words in reverse.
    std::vector<std::string> reversed(words.rbegin(), words.rend() - 1);
    app.parse(std::move(reversed));
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    write_stdout(app.help());
    return 0;
  } catch (const CLI::ExtrasError&) {
    std::string hint, unknown;
    for (const std::string& word : app.remaining()) {
      if (word.empty() || word[0] != '-') continue;
      unknown = word.substr(0, word.find('='));
      hint = suggest(unknown, option_names(app));
      break;
    }
    if (unknown.empty())
      throw Error(ErrorKind::usage,
                  fmt::format("{}: unexpected '{}'", words.front(), join(app.remaining(), " ")));
    if (!hint.starts_with("did")) hint = fmt::format("kda-check {} --help", words.front());
    throw Error(ErrorKind::usage, fmt::format("{}: no option '{}'", words.front(), unknown), {}, hint);
  } catch (const CLI::ParseError& error) {
    const std::string near = nearest_member(error.what());
    throw Error(ErrorKind::usage, fmt::format("{}: {}", words.front(), error.what()), {},
                near.empty() ? fmt::format("kda-check {} --help", words.front()) : near);
  }
}

void add_names(CLI::App& app, const char* flag, std::vector<std::string>& names, const char* text,
               const char* value) {
  app.add_option_function<std::vector<std::string>>(
         flag,
         [&names, flag](const std::vector<std::string>& words) {
           names.clear();
           for (const std::string& word : words) {
             const std::vector<std::string> some = split_commas(word);
             if (some.empty()) throw CLI::ValidationError(flag, "'" + word + "' holds no name");
             names.insert(names.end(), some.begin(), some.end());
           }
         },
         text)
      ->expected(1)
      ->option_text(value)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_arithmetic(CLI::App& app, std::vector<std::string>& words, const char* text) {
  add_names(app, "--arithmetic", words, text, "KEY=VALUE,...");
  app.get_option("--arithmetic")
      ->check(CLI::Validator(
          [](const std::string& list) -> std::string {
            const std::string framed = "," + list + ",";
            return framed.find(",,") == std::string::npos ? "" : "'" + list + "' has an empty word";
          },
          ""));
}

void add_requirements(CLI::App& app, std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const std::string_view name : session::requirements()) known.emplace_back(name);
  add_names(
      app, "--require", names,
      fmt::format("Exit with 4 unless this is here, before anything runs, and used: {}", join(known)).c_str(),
      "NAME");
}

CLI::Validator non_negative_number() {
  return {[](const std::string& text) -> std::string {
            double value = 0;
            const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool is_number = failure == std::errc{} && end == text.data() + text.size();
            if (is_number && std::isfinite(value) && value >= 0) return {};
            return "'" + text + "' is not a number >= 0";
          },
          ""};
}

void add_chunk_size(CLI::App& app, std::size_t& rows) {
  app.add_option("--chunk-size", rows, "Rows of a chunk (default: the fixture's)")
      ->check(CLI::Range(1, 1024))
      ->option_text("N")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_threads(CLI::App& app, int& threads) {
  threads = available_threads();
  app.add_option("--threads", threads,
                 "Threads to use; results do not depend on it (default: all processors)")
      ->check(CLI::Range(1, 1024))
      ->option_text("N")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_memory_limit(CLI::App& app, std::size_t& bytes) {
  app.add_option_function<std::string>(
         "--memory-limit",
         [&bytes](const std::string& text) {
           const auto size = size_in_bytes(text);
           if (!size)
             throw CLI::ValidationError("--memory-limit", "'" + text + "' is not a size, e.g. 512M or 8G");
           bytes = *size;
         },
         "Refuse files whose tensors need more (default: half of the memory)")
      ->option_text("SIZE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

session::Log log_through(Progress& progress) {
  return {[&progress](const std::string& text) {
            progress.clear();
            warn(text);
          },
          [&progress](const std::string& text) { progress.show(text); }};
}

void print_errors(const std::vector<report::FailedInput>& errors) {
  for (const report::FailedInput& error : errors)
    write_stderr(fmt::format("kda-check: error: {}\n", printable(error.message)));
}

}  // namespace kda_check::cli

#include "base/shell_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"

namespace kda_check {

namespace {

/// What the shell is reading. `substitution` is inside of $( ) or ( ), and like the command line itself, but
/// ends at its parenthesis.
enum class Context : unsigned char {
  command,
  substitution,
  backquotes,
  single_quotes,
  double_quotes,
  comment
};

constexpr int most_backquotes = 8;

bool is_harmless(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' ||
           c == '.' || c == '_' || c == '-';
  });
}

std::string with_backslashes(std::string_view text, std::string_view before) {
  std::string result;
  for (const char c : text) {
    if (before.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

/// Follows a command line letter by letter and knows what quotes it is in.
class Reader {
 public:
  /// Bytes that belong together at the start of `rest`, at least one; `before`: the letter in front of them.
  std::size_t step(std::string_view rest, char before) {
    const char c = rest[0];
    const auto starts_with = [&](std::string_view text) { return rest.substr(0, text.size()) == text; };
    switch (contexts_.back()) {
      case Context::comment:
        if (c == '\n') contexts_.pop_back();
        return 1;
      case Context::single_quotes:
        if (c == '\'') contexts_.pop_back();
        return 1;
      case Context::double_quotes:
        if (c == '"') return contexts_.pop_back(), 1;
        break;
      case Context::command:
      case Context::substitution:
      case Context::backquotes:
        if (c == '\'') return enter(Context::single_quotes, 1);
        if (c == '"') return enter(Context::double_quotes, 1);
        if (c == '(') return enter(Context::substitution, 1);
        if (c == ')' && contexts_.back() == Context::substitution) return contexts_.pop_back(), 1;
        if (c == '#' &&
            (before == '\0' || std::string_view(" \t\n;&|(").find(before) != std::string_view::npos))
          return enter(Context::comment, 1);
        break;
    }
    // In quotes that expand and outside of them.
    if (c == '\\') return std::min<std::size_t>(2, rest.size());
    if (starts_with("$(")) return enter(Context::substitution, 2);
    if (c == '`') {
      if (contexts_.back() == Context::backquotes) return contexts_.pop_back(), 1;
      return enter(Context::backquotes, 1);
    }
    return 1;
  }

  /// `text` as it must be written here.
  std::string written(std::string_view text) const {
    if (contexts_.back() == Context::comment) return {};
    if (is_harmless(text)) return std::string(text);
    // Each doubles the backslashes of those inside.
    if (std::count(contexts_.begin(), contexts_.end(), Context::backquotes) > most_backquotes)
      throw Error(ErrorKind::usage,
                  fmt::format("a command with more than {} backquotes in one another", most_backquotes), {},
                  "$( ) nests without them");
    std::string result;
    switch (contexts_.back()) {
      case Context::single_quotes:
        result = fmt::format("'{}'", shell_quoted(text));
        break;
      case Context::double_quotes:
        result = with_backslashes(text, "\\\"$`");
        break;
      default:
        result = shell_quoted(text);
    }
    // What is between backquotes is read twice: first it loses these backslashes.
    for (std::size_t i = contexts_.size(); i-- > 0;)
      if (contexts_[i] == Context::backquotes) {
        const bool quoted = i > 0 && contexts_[i - 1] == Context::double_quotes;
        result = with_backslashes(result, quoted ? "\\`$\"" : "\\`$");
      }
    return result;
  }

 private:
  std::size_t enter(Context context, std::size_t bytes) {
    contexts_.push_back(context);
    return bytes;
  }
  std::vector<Context> contexts_{Context::command};
};

}  // namespace

std::string shell_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  }
  return quoted + "'";
}

std::string with_placeholders(std::string_view command, const std::vector<Placeholder>& placeholders) {
  std::string result;
  Reader reader;
  for (std::size_t at = 0; at < command.size();) {
    const std::string_view rest = command.substr(at);
    const auto found = std::find_if(placeholders.begin(), placeholders.end(), [&](const Placeholder& item) {
      return rest.substr(0, item.first.size()) == item.first;
    });
    if (found != placeholders.end()) {
      result += reader.written(found->second);
      at += found->first.size();
      continue;
    }
    const std::size_t bytes = reader.step(rest, at > 0 ? command[at - 1] : '\0');
    result += rest.substr(0, bytes);
    at += bytes;
  }
  return result;
}

}  // namespace kda_check

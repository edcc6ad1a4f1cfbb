#include "plan/words.hpp"

#include "base/error.hpp"
#include "base/shell_text.hpp"

namespace kda_check::plan {

namespace {

constexpr std::string_view blanks = " \t\r\n";

/// Cuts one line; what is left of it is always at `line_`.
class Cutter {
 public:
  explicit Cutter(std::string_view line) : line_(line) {}

  Words words() {
    for (;;) {
      const std::size_t begin = line_.find_first_not_of(blanks);
      if (begin == std::string_view::npos || line_[begin] == '#') return std::move(words_);
      line_.remove_prefix(begin);
      words_.push_back(word());
    }
  }

 private:
  std::string word() {
    std::string text;
    while (!line_.empty() && blanks.find(line_.front()) == std::string_view::npos) {
      const char first = line_.front();
      line_.remove_prefix(1);
      if (first == '\'') {
        text += line_.substr(0, end_of_quote('\''));
        line_.remove_prefix(line_.find('\'') + 1);
      } else if (first == '"') {
        in_double_quotes(text);
      } else if (first == '\\') {
        if (line_.empty()) throw Error(ErrorKind::input, "a backslash at the end of the line");
        text += line_.front();
        line_.remove_prefix(1);
      } else {
        text += first;
      }
    }
    return text;
  }

  void in_double_quotes(std::string& text) {
    for (;;) {
      if (line_.empty()) not_closed('"');
      const char first = line_.front();
      line_.remove_prefix(1);
      if (first == '"') return;
      const bool escapes = first == '\\' && !line_.empty() &&
                           std::string_view("\"\\$`").find(line_.front()) != std::string_view::npos;
      text += escapes ? line_.front() : first;
      if (escapes) line_.remove_prefix(1);
    }
  }

  std::size_t end_of_quote(char quote) const {
    const std::size_t end = line_.find(quote);
    if (end == std::string_view::npos) not_closed(quote);
    return end;
  }
  [[noreturn]] static void not_closed(char quote) {
    throw Error(ErrorKind::input, std::string("a ") + quote + " without its partner");
  }

  std::string_view line_;
  Words words_;
};

bool is_plain(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%^";
  return !word.empty() && word.find_first_not_of(plain) == std::string::npos;
}

}  // namespace

Words words_of(std::string_view line) { return Cutter(line).words(); }

std::string line_of(const Words& words) {
  std::string line;
  for (const std::string& word : words)
    line += (line.empty() ? "" : " ") + (is_plain(word) ? word : shell_quoted(word));
  return line;
}

}  // namespace kda_check::plan

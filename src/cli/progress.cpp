#include "cli/progress.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/names.hpp"

namespace kda_check::cli {

namespace {

/// "0:04", "1:02:03"
std::string duration_text(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  const long hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

}  // namespace

void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void warn(const std::string& text) { write_stderr(fmt::format("kda-check: warning: {}\n", printable(text))); }
void say(const std::string& text) { write_stderr(fmt::format("kda-check: {}\n", printable(text))); }

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) != 0), start_(std::chrono::steady_clock::now()) {}

void Progress::show(const std::string& text) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  write_stderr(fmt::format("\r\x1b[K{}{:.80}", ahead_, printable(text)));
  shown_ = true;
}

void Progress::done(const engine::Done& done) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double left = done.seconds > 0 ? passed * (done.of_seconds - done.seconds) / done.seconds : 0;
  ahead_ = fmt::format("{}/{}  {}", done.cases, done.of_cases, duration_text(passed));
  // The first cases say little about the rest.
  ahead_ += passed > 1 && left >= 1 ? fmt::format(", about {} left  ", duration_text(left)) : "  ";
}

void Progress::clear_line() {
  if (shown_) write_stderr("\r\x1b[K");
  shown_ = false;
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  clear_line();
}

void Progress::warn(const std::string& text) {
  const std::lock_guard lock(mutex_);
  clear_line();
  cli::warn(text);
}

void reserve_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) < 0) return;
}

bool wants_unicode() {
  for (const char* const variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(variable);
    if (value == nullptr || value[0] == '\0') continue;
    const std::string_view locale(value);
    for (const std::string_view name : {"UTF-8", "utf-8", "UTF8", "utf8"})
      if (locale.find(name) != std::string_view::npos) return true;
    return false;
  }
  return false;
}

bool wants_color(const std::string& choice) {
  if (choice != "auto") return choice == "always";
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const term = std::getenv("TERM");
  if (no_color != nullptr && no_color[0] != '\0') return false;
  if (term == nullptr || std::string_view(term) == "dumb") return false;
  return ::isatty(STDOUT_FILENO) != 0;
}

}  // namespace kda_check::cli

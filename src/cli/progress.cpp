#include "cli/progress.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>

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

/// No other program's: one that is started here would write to whatever has that number there.
Descriptor pipe_of_who_started() {
  constexpr char variable[] = "KDA_CHECK_PROGRESS";
  const char* const value = std::getenv(variable);
  if (value == nullptr) return Descriptor();
  const std::string_view digits(value);
  int number = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  ::unsetenv(variable);
  struct stat status {};
  if (number <= STDERR_FILENO || ::fstat(number, &status) != 0 || !S_ISFIFO(status.st_mode))
    return Descriptor();
  ::fcntl(number, F_SETFD, FD_CLOEXEC);
  ::fcntl(number, F_SETFL, O_WRONLY | O_NONBLOCK);
  return Descriptor(::fcntl(number, F_DUPFD_CLOEXEC, 0));  // the number stays that of who started it
}

}  // namespace

void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void warn(const std::string& text) { write_stderr(fmt::format("kda-check: warning: {}\n", printable(text))); }
void say(const std::string& text) { write_stderr(fmt::format("kda-check: {}\n", printable(text))); }

Progress::Progress()
    : terminal_(::isatty(STDERR_FILENO) != 0),
      pipe_(pipe_of_who_started()),
      start_(std::chrono::steady_clock::now()) {}

void Progress::begin(double seconds, std::size_t cases) {
  if (!terminal_ && !pipe_.is_open()) return;
  seconds_ = seconds, done_.of_cases = cases;
  whole_.emplace(seconds);
  try {
    watch_ = std::jthread([this](const std::stop_token& stop) {
      constexpr std::chrono::milliseconds between{250};
      std::unique_lock lock(mutex_);
      for (;;) {
        news_.wait_for(lock, stop, between, [] { return false; });
        if (stop.stop_requested()) return;
        try {
          if (shown_) draw();
          tell();
        } catch (const std::bad_alloc&) {
          // Whoever works says so.
        }
      }
    });
  } catch (const std::system_error&) {
    // No thread is to be had: the line changes when something is told.
  }
}

void Progress::show(const std::string& text) {
  const std::lock_guard lock(mutex_);
  text_ = printable(text);
  draw();
}

void Progress::done(const engine::Done& done) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  draw();
  tell();
}

double Progress::share() const { return seconds_ > 0 ? std::min(1.0, whole_->done() / seconds_) : 0; }

std::string Progress::ahead() const {
  if (!whole_) return {};
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(),
               done = share(), left = done > 0 ? passed * (1 - done) / done : 0;
  std::string text;
  if (done_.of_cases > 0) text = fmt::format("{}/{}  ", done_.cases, done_.of_cases);
  text += fmt::format("{:.0f} %  {}", std::floor(100 * done), duration_text(passed));
  // The first steps say little about the rest.
  if (passed > 1 && left >= 1) text += fmt::format(", about {} left", duration_text(left));
  return text + "  ";
}

void Progress::draw() {
  if (!terminal_ || text_.empty()) return;
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  // A line that is broken in two cannot be taken back.
  write_stderr(fmt::format("\r\x1b[K{:.{}}", ahead() + text_, is_known ? size.ws_col - 1 : 79));
  shown_ = true;
}

void Progress::tell() {
  if (!pipe_.is_open() || !whole_) return;
  const std::string line = fmt::format("{:.4f} {}\n", share(), text_);
  if (::write(pipe_.number(), line.data(), line.size()) < 0 && errno != EAGAIN) pipe_.reset();
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

#include "cli/output.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace kda_check::cli {

namespace {

[[noreturn]] void cannot_write(const std::string& path) {
  throw Error(ErrorKind::environment, fmt::format("cannot write: {}", std::strerror(errno)), path);
}

bool is_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (is_stdout()) return;
  // A device or a pipe is written as it is; a temporary name beside it would be something else.
  if (!is_special(path_)) temporary_ = fmt::format("{}.{}.tmp", path_, ::getpid());
  struct stat status {};
  if (::stat(path_.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    cannot_write(path_);
  }
  file_ = std::fopen(temporary_.empty() ? path_.c_str() : temporary_.c_str(), "wb");
  if (file_ == nullptr) {
    temporary_.clear();
    cannot_write(path_);
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::exchange(other.file_, nullptr)) {}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void OutputFile::commit(const std::string& text) {
  if (is_stdout()) return write_stdout(text);
  const bool complete = std::fwrite(text.data(), 1, text.size(), file_) == text.size() &&
                        std::fflush(file_) == 0 && (temporary_.empty() || ::fsync(::fileno(file_)) == 0);
  const int reason = errno;
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (!complete) errno = reason;
  if (!complete || !closed) cannot_write(path_);
  if (!temporary_.empty() && std::rename(temporary_.c_str(), path_.c_str()) != 0) cannot_write(path_);
  temporary_.clear();
}

void write_stdout(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    cannot_write("standard output");
}

void warn(const std::string& text) { fmt::print(stderr, "kda-check: warning: {}\n", text); }

void Progress::show(const std::string& text) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (!terminal) return;
  fmt::print(stderr, "\r\x1b[K{:.100}", text);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
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

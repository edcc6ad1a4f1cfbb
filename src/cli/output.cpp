#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/replacement.hpp"

namespace kda_check::cli {

namespace {

[[noreturn]] void cannot_write(const std::string& path) {
  throw Error(ErrorKind::environment, fmt::format("cannot write: {}", std::strerror(errno)), path);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (is_stdout()) return;
  struct stat status {};
  const bool exists = ::stat(path_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    cannot_write(path_);
  }
  // A file that may not be written could still be replaced: that is not what its owner meant.
  if (exists && ::faccessat(AT_FDCWD, path_.c_str(), W_OK, AT_EACCESS) != 0) cannot_write(path_);
  // A device or a pipe is written as it is; a temporary name beside it would be something else.
  target_ = exists && !S_ISREG(status.st_mode) ? path_ : link_target(path_);
  if (!exists || S_ISREG(status.st_mode)) temporary_.emplace(fmt::format("{}.{}.tmp", target_, ::getpid()));
  file_ = std::fopen(temporary_ ? temporary_->path().c_str() : target_.c_str(), "wb");
  if (file_ == nullptr) {
    temporary_.reset();
    cannot_write(path_);
  }
  if (temporary_ && exists) ::fchmod(::fileno(file_), status.st_mode & 07777u);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)),
      file_(std::exchange(other.file_, nullptr)) {
  other.temporary_.reset();
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (temporary_) std::remove(temporary_->path().c_str());
}

void OutputFile::commit(const std::string& text) {
  if (is_stdout()) return write_stdout(text);
  const bool complete = std::fwrite(text.data(), 1, text.size(), file_) == text.size() &&
                        std::fflush(file_) == 0 && (!temporary_ || ::fsync(::fileno(file_)) == 0);
  const int reason = errno;
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (!complete) errno = reason;
  if (!complete || !closed) cannot_write(path_);
  if (temporary_ && std::rename(temporary_->path().c_str(), target_.c_str()) != 0) cannot_write(path_);
  temporary_.reset();
}

void write_stdout(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    cannot_write("standard output");
}

void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void reserve_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) < 0) return;
}

void warn(const std::string& text) { write_stderr(fmt::format("kda-check: warning: {}\n", printable(text))); }

void Progress::show(const std::string& text) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (!terminal) return;
  write_stderr(fmt::format("\r\x1b[K{:.100}", printable(text)));
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  write_stderr("\r\x1b[K");
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

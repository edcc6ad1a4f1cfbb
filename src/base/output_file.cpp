#include "base/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/interruption.hpp"

namespace kda_check {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

namespace {

/// The folder of a path, "." for a bare name.
std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// The descriptor of this process that a path such as /dev/stdout stands for; -1: none. Opened by its path
/// it would begin at its start again, and a file would be replaced under whoever else writes to it.
int own_descriptor(const std::string& path) {
  constexpr int longest_chain = 40;
  fs::path at = path;
  std::error_code failure;
  for (int link = 0; link < longest_chain && fs::is_symlink(at, failure); ++link) {
    const std::string name = at.filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos && name.size() < 8 &&
        fs::equivalent(folder_of(at.string()), "/proc/self/fd", failure))
      return std::stoi(name);
    const fs::path next = fs::read_symlink(at, failure);
    if (failure) return -1;
    at = next.is_absolute() ? next : at.parent_path() / next;
  }
  return -1;
}

/// A name beside `target` that nobody else has thought of.
std::string temporary_name(const std::string& target) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    number = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) ^
             static_cast<std::uint64_t>(::getpid()) << 48;
  const fs::path path = target;
  constexpr std::size_t added = sizeof ".0123456789abcdef.tmp";
  const std::string name = path.filename().string().substr(0, NAME_MAX - added);
  return (path.parent_path() / fmt::format("{}.{:016x}.tmp", name, number)).string();
}

/// The folder of a file, locked for the moment of a replacement: who looks whether a file is still the one
/// that was read and who replaces it take turns. Where folders cannot be locked, without.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr int longest_wait_ms = 10'000, step_ms = 10;
    for (int waited = 0; folder_.is_open() && ::flock(folder_.number(), LOCK_EX | LOCK_NB) != 0;) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return;
      if (waited >= longest_wait_ms)
        throw Error(ErrorKind::environment, "the folder has been locked for ten seconds", folder);
      ::usleep(step_ms * 1000);
      waited += step_ms;
    }
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  // A child that was forked meanwhile holds the folder open as well: closing it would not unlock it.
  ~FolderLock() {
    if (folder_.is_open()) ::flock(folder_.number(), LOCK_UN);
  }
  /// The new name of a file is in the folder for good. File systems that cannot say so are let pass.
  void sync() const {
    if (folder_.is_open()) ::fsync(folder_.number());
  }

 private:
  Descriptor folder_;
};

}  // namespace

std::string link_target(const std::string& path) {
  constexpr int longest_chain = 40;  // as Linux has it
  fs::path target = path;
  std::error_code failure;
  for (int link = 0; fs::is_symlink(target, failure); ++link) {
    const fs::path next = fs::read_symlink(target, failure);
    if (failure || link == longest_chain) {
      errno = failure ? failure.value() : ELOOP;
      return {};
    }
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target.string();
}

void OutputFile::cannot_write(int reason) const {
  throw Error(ErrorKind::environment, fmt::format("cannot write: {}", std::strerror(reason)), path_);
}

OutputFile::OutputFile(const std::string& path, OutputKind kind) : path_(path), kind_(kind) {
  if (kind == OutputKind::report) {
    if (is_stdout()) return;
    if (const int own = own_descriptor(path); own >= 0) {
      file_.reset(::fcntl(own, F_DUPFD_CLOEXEC, 0));
      if (!file_.is_open()) cannot_write(errno);
      return;
    }
  }
  target_ = link_target(path);
  if (target_.empty()) cannot_write(path.empty() ? ENOENT : errno);
  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) cannot_write(errno);
  if (exists && S_ISDIR(status.st_mode)) cannot_write(EISDIR);
  // A file that may not be written could still be replaced: that is not what its owner meant.
  if (exists && ::faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0) cannot_write(errno);
  if (exists && !S_ISREG(status.st_mode)) {
    if (kind == OutputKind::kept || S_ISBLK(status.st_mode))
      throw Error(ErrorKind::environment, "cannot write: it is not a regular file", path_);
    open_stream();
    return;
  }
  if (exists) replaced_ = FileIdentity::from(status);
  open_temporary(exists ? std::optional<mode_t>(status.st_mode & 07777u) : std::nullopt);
  if (exists && ::fchown(file_.number(), status.st_uid, status.st_gid) == 0)
    ::fchmod(file_.number(), status.st_mode & 07777u);  // a change of owner clears bits of the mode
}

OutputFile::~OutputFile() {
  if (file_.is_open() && temporary_) std::remove(temporary_->path().c_str());
}

void OutputFile::open_temporary(std::optional<mode_t> mode) {
  do {
    temporary_.emplace(temporary_name(target_));
    file_.reset(::open(temporary().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  } while (!file_.is_open() && errno == EEXIST);
  if (!file_.is_open()) cannot_write(errno);
  if (mode && ::fchmod(file_.number(), *mode) != 0) {
    const int reason = errno;
    std::remove(temporary().c_str());
    cannot_write(reason);
  }
}

void OutputFile::open_stream() {
  for (;;) {
    file_.reset(::open(target_.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (file_.is_open()) return;
    if (errno != ENXIO || !fs::is_fifo(target_)) cannot_write(errno);
    sleep_for(milliseconds(20));  // a pipe that nobody reads yet
  }
}

void OutputFile::write(std::string_view text) {
  if (!write_all(file_.number(), text)) cannot_write(errno);
}

void OutputFile::copy_from(int descriptor) {
  std::string block(std::size_t{1} << 20, '\0');
  for (off_t at = 0;;) {
    check_interruption();
    const ssize_t count = ::pread(descriptor, block.data(), block.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw Error(ErrorKind::environment, fmt::format("cannot copy the file: {}", std::strerror(errno)),
                  path_);
    if (count == 0) return;
    write(std::string_view(block).substr(0, static_cast<std::size_t>(count)));
    at += count;
  }
}

void OutputFile::commit(std::string_view text) {
  if (is_stdout()) {
    write_stdout(text);
    return;
  }
  write(text);
  commit();
}

void OutputFile::commit() {
  if (!temporary_) {
    if (::close(file_.release()) != 0) cannot_write(errno);
    return;
  }
  // EINVAL, ENOSYS: a file system that has no such thing.
  if (::fsync(file_.number()) != 0 && errno != EINVAL && errno != ENOSYS) cannot_write(errno);
  const FolderLock lock(folder_of(target_));
  if (kind_ == OutputKind::kept && FileIdentity::of(target_) != replaced_)
    throw Error(ErrorKind::environment, "was written by another process meanwhile", path_, "run again");
  if (std::rename(temporary().c_str(), target_.c_str()) != 0) cannot_write(errno);
  lock.sync();
  file_.reset();
  temporary_.reset();
}

bool write_stdout(std::string_view text) {
  std::fflush(stdout);
  if (write_all(STDOUT_FILENO, text)) return true;
  if (errno == EPIPE) return false;
  throw Error(ErrorKind::environment, fmt::format("cannot write: {}", std::strerror(errno)),
              "standard output");
}

}  // namespace kda_check

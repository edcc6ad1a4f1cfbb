#include "base/replacement.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"

namespace kda_check {

namespace {

[[noreturn]] void cannot_write(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::environment, "cannot write: " + reason, path);
}

bool may(const std::string& path, int mode) {
  return ::faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0;
}

bool reached_the_disk(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool synced = ::fsync(descriptor) == 0;
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  return synced;
}

}  // namespace

std::string link_target(const std::string& path) {
  constexpr int longest_chain = 40;  // as Linux has it
  std::filesystem::path target = path;
  std::error_code failure;
  for (int link = 0; link < longest_chain && std::filesystem::is_symlink(target, failure); ++link) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, failure);
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target.string();
}

Replacement::Replacement(const std::string& path) : path_(path), target_(link_target(path)) {
  struct stat status {};
  if (::stat(target_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) cannot_write(path_, "it is a folder");
    if (!S_ISREG(status.st_mode)) cannot_write(path_, "it is not a regular file");
    // A file that may not be written could still be replaced: that is not what its owner meant.
    if (!may(target_, W_OK)) cannot_write(path_, std::strerror(errno));
    mode_ = status.st_mode & 07777u;
  }
  const std::string folder = std::filesystem::path(target_).parent_path().string();
  if (!may(folder.empty() ? "." : folder, W_OK | X_OK)) cannot_write(path_, std::strerror(errno));
  temporary_.emplace(target_ + "." + std::to_string(::getpid()) + ".tmp");
}

Replacement::~Replacement() {
  if (temporary_) std::remove(temporary().c_str());
}

void Replacement::commit() {
  if (!reached_the_disk(temporary()) || (mode_ && ::chmod(temporary().c_str(), *mode_) != 0) ||
      std::rename(temporary().c_str(), target_.c_str()) != 0)
    cannot_write(path_, std::strerror(errno));
  temporary_.reset();
}

}  // namespace kda_check

#include "base/file_identity.hpp"

namespace kda_check {

FileIdentity FileIdentity::from(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

FileIdentity FileIdentity::of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? from(status) : FileIdentity{};
}

FileIdentity FileIdentity::of(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 ? from(status) : FileIdentity{};
}

}  // namespace kda_check

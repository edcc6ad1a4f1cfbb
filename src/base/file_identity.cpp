#include "base/file_identity.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/descriptors.hpp"
#include "base/hash.hpp"

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

std::uint64_t fingerprint(const std::string& path) {
  constexpr std::int64_t samples = 64, bytes = 4096;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return 0;
  const std::int64_t size = FileIdentity::of(file.number()).size,
                     last = std::max<std::int64_t>(0, size - bytes);
  Hash hash;
  hash.add(std::to_string(size));
  std::array<char, bytes> sample;
  const std::int64_t count = std::min(samples, last / bytes + 2);  // of a small file all, hardly twice
  for (std::int64_t i = 0; i < (last > 0 ? count : 1); ++i) {
    const ssize_t got = ::pread(file.number(), sample.data(), sample.size(), last * i / (count - 1));
    if (got > 0) hash.add({sample.data(), static_cast<std::size_t>(got)});
  }
  return hash.value();
}

}  // namespace kda_check

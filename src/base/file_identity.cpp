#include "base/file_identity.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>

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
  constexpr std::int64_t samples = 64;
  constexpr std::size_t bytes = 4096;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return 0;
  const std::int64_t size = FileIdentity::of(file).size;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (int shift = 0; shift < 64; shift += 8) add(static_cast<unsigned char>(size >> shift));
  std::array<unsigned char, bytes> sample;
  const std::int64_t last = size - static_cast<std::int64_t>(bytes);
  for (std::int64_t i = 0; i < (last > 0 ? samples : 1); ++i) {
    const ssize_t got = ::pread(file, sample.data(), bytes, last > 0 ? last * i / (samples - 1) : 0);
    for (ssize_t j = 0; j < got; ++j) add(sample[static_cast<std::size_t>(j)]);
  }
  ::close(file);
  return hash;
}

}  // namespace kda_check

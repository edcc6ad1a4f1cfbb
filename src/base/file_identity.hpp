// Whether a file is still the one it was.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace kda_check {

/// Which file stands behind a path or a descriptor, and which writing of it. That there is none is an
/// identity too.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  std::int64_t size = -1;
  std::int64_t seconds = 0, nanoseconds = 0;  ///< of the last writing

  bool operator==(const FileIdentity&) const = default;
  bool exists() const { return size >= 0; }

  static FileIdentity from(const struct stat& status);
  /// Through symbolic links; of a path that cannot be looked at: none.
  static FileIdentity of(const std::string& path);
  static FileIdentity of(int descriptor);
};

/// Of what a file holds, wherever it lies: its size and 64 samples of 4 KiB. Copies have the same; a file
/// whose numbers are others has another one. 0 for a path that cannot be read.
std::uint64_t fingerprint(const std::string& path);

}  // namespace kda_check

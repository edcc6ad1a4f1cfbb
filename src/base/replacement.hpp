// Files that are replaced whole or not at all.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/temporary_files.hpp"

namespace kda_check {

/// Where a path leads when it is a symbolic link, even to nothing.
std::string link_target(const std::string& path);

/// A file in the making: written under a temporary name beside its path, renamed by commit(). Without
/// commit(), or when a signal ends the process, the temporary file is removed and the old one stays.
class Replacement {
 public:
  /// Through symbolic links; makes no file yet. Throws Error{environment} where none could be made: a folder,
  /// a device, a file or a place that the user may not write.
  explicit Replacement(const std::string& path);
  Replacement(Replacement&&) = delete;
  Replacement& operator=(Replacement&&) = delete;
  ~Replacement();

  const std::string& path() const { return path_; }  ///< as given, for messages
  const std::string& temporary() const { return temporary_->path(); }
  /// What is in the temporary file reaches the disk and becomes the file, with the mode of the old one.
  /// Throws Error{environment}.
  void commit();

 private:
  std::string path_, target_;
  std::optional<mode_t> mode_;
  std::optional<TemporaryFile> temporary_;
};

}  // namespace kda_check

// Files that must not outlive the process.
#pragma once

#include <string>

namespace kda_check {

/// Keeps one path in mind for as long as it lives. It does not remove the file itself.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* entry_;
};

/// Removes all that are kept in mind. For handlers of signals.
void remove_temporary_files();

}  // namespace kda_check

// Files that must not outlive the process: removed also when SIGINT, SIGTERM or SIGHUP ends it.
#pragma once

#include <memory>
#include <string>

namespace kda_check {

/// Keeps one path in mind for as long as it lives; the handlers of the signals remove what is kept then. It
/// does not remove the file itself.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  TemporaryFile(TemporaryFile&&) noexcept = default;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  const std::string& path() const { return *path_; }

 private:
  std::unique_ptr<const std::string>
      path_;  ///< the string stays where it is: the handler may read it at any time
};

/// The same for a process group of a program started here: ended then with SIGKILL. One at a time.
class TemporaryProcesses {
 public:
  explicit TemporaryProcesses(int group);
  TemporaryProcesses(TemporaryProcesses&&) = delete;
  TemporaryProcesses& operator=(TemporaryProcesses&&) = delete;
  ~TemporaryProcesses();
};

}  // namespace kda_check

// A file that is handed to a program and gone afterwards.
#pragma once

#include <string>

#include "base/temporary_files.hpp"

namespace kda_check {

/// An empty file of its own in the folder for temporary files, removed at the end, also when a signal ends
/// the process. Throws Error{environment}.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& ending);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();
  const std::string& path() const { return file_.path(); }

 private:
  TemporaryFile file_;
};

}  // namespace kda_check

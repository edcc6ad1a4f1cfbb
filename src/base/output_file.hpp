// Files that are replaced whole or not at all.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/descriptors.hpp"
#include "base/file_identity.hpp"
#include "base/temporary_files.hpp"

namespace kda_check {

/// What a path may lead to.
enum class OutputKind : unsigned char {
  /// A regular file, or none yet, that is read again later: a fixture, a baseline. One that another process
  /// wrote meanwhile is not replaced.
  kept,
  /// For whoever reads it: also "-" for standard output, a pipe, a terminal, /dev/null. The last writer wins.
  report,
};

/// A file in the making, opened before any work so that a path that cannot be written fails at once: a
/// temporary file beside the target, which commit() puts in its place. Without commit(), or when a signal
/// ends the process, it is removed and the old file stays.
///
/// Through symbolic links. A file that exists keeps its mode, a new one gets that of the umask.
class OutputFile {
 public:
  /// Throws Error{environment}: a folder, a loop of links, a disk; what the user may not write; of `kept`
  /// also what is no regular file. A named pipe is waited for until somebody reads it (Interrupted).
  explicit OutputFile(const std::string& path, OutputKind kind = OutputKind::report);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }  ///< as given, for messages
  bool is_stdout() const { return kind_ == OutputKind::report && path_ == "-"; }
  /// Where somebody else writes what commit() without a text puts in place. Of `kept` only.
  const std::string& temporary() const { return temporary_->path(); }

  /// What a file of the kind `kept` replaces: without this call what was there when it was opened. For one
  /// that was read before: as it was then.
  void replaces(const FileIdentity& as_read) { replaced_ = as_read; }

  /// Copies all of an open file into the temporary one. Throws Error{environment}.
  void copy_from(int descriptor);

  /// The text reaches the disk and becomes the file. Throws Error{environment} and leaves the old file as it
  /// was: it does not reach the disk, another process wrote the file meanwhile.
  void commit(std::string_view text);
  /// ... what is in the temporary file.
  void commit();

 private:
  void open_temporary(std::optional<mode_t> mode);
  void open_stream();
  void write(std::string_view text);
  [[noreturn]] void cannot_write(int reason) const;

  std::string path_;
  OutputKind kind_;
  std::string target_;  ///< where the links end
  FileIdentity replaced_;
  std::optional<TemporaryFile> temporary_;
  Descriptor file_;
};

/// Where a path leads when it is a symbolic link, even to nothing. Sets errno and is empty for a loop.
std::string link_target(const std::string& path);

/// False: whoever read standard output has gone. Throws Error{environment} when it is closed or full.
bool write_stdout(std::string_view text);

}  // namespace kda_check

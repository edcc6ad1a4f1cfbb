// Where reports go: standard output, or files that are replaced whole or not at all. And what goes to the
// terminal.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "base/temporary_files.hpp"

namespace kda_check::cli {

/// Opened before any work, so that a path that cannot be written fails at once; written to a temporary name
/// beside the path and renamed by commit(). Without commit() the temporary file is removed and the old one
/// stays.
class OutputFile {
 public:
  /// "-" is standard output. Through symbolic links; a file that exists keeps its mode. Throws
  /// Error{environment}, also for a file the user may not write.
  explicit OutputFile(std::string path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  bool is_stdout() const { return path_ == "-"; }
  /// Throws Error{environment} when the text did not reach the file.
  void commit(const std::string& text);

 private:
  std::string path_;    ///< as given, for messages
  std::string target_;  ///< where the links end
  std::optional<TemporaryFile> temporary_;
  std::FILE* file_ = nullptr;
};

/// Throws Error{environment} when standard output is closed or full.
void write_stdout(const std::string& text);

/// Lines for people, and no reason to fail: what cannot be written there is lost.
void write_stderr(const std::string& text);

/// Opens what is missing of standard input, output and error, so that no file takes their numbers; writing to
/// them fails as before.
void reserve_standard_streams();

void warn(const std::string& text);

/// One line on standard error that replaces itself; nothing unless that is a terminal.
class Progress {
 public:
  void show(const std::string& text);
  void clear();

 private:
  bool shown_ = false;
};

/// True when the locale of the terminal is UTF-8, by LC_ALL, LC_CTYPE or LANG.
bool wants_unicode();

/// --color: "auto" colours a terminal unless NO_COLOR is set and not empty or TERM is dumb.
bool wants_color(const std::string& choice);

}  // namespace kda_check::cli

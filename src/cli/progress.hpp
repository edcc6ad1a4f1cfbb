// What goes to the terminal while a command works: one line that replaces itself, with how far it is and what
// is left; warnings; lines about the end.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "engine/engine.hpp"

namespace kda_check::cli {

/// Lines for people, and no reason to fail: what cannot be written there is lost.
void write_stderr(const std::string& text);
/// "kda-check: warning: ..."
void warn(const std::string& text);
/// "kda-check: ..."
void say(const std::string& text);

/// Nothing is shown unless standard error is a terminal. From any thread.
class Progress {
 public:
  Progress();
  /// What is being done.
  void show(const std::string& text);
  /// How much of the plan is; what is left is estimated from how fast that went.
  void done(const engine::Done& done);
  void clear();
  /// Clears the line, then warns.
  void warn(const std::string& text);

 private:
  void clear_line();

  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::string ahead_;  ///< "12/501  0:04, about 0:12 left  "
  bool shown_ = false;
};

/// True when the locale of the terminal is UTF-8, by LC_ALL, LC_CTYPE or LANG.
bool wants_unicode();
/// --color: "auto" colours a terminal unless NO_COLOR is set and not empty or TERM is dumb.
bool wants_color(const std::string& choice);
/// Opens what is missing of standard input, output and error, so that no file takes their numbers; writing to
/// them fails as before.
void reserve_standard_streams();

}  // namespace kda_check::cli

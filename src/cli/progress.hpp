// What goes to the terminal while a command works: one line that replaces itself, with how far it is and what
// is left; warnings; lines about the end. Who started the program may have the same through a pipe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/descriptors.hpp"
#include "base/threads/work.hpp"
#include "engine/engine.hpp"

namespace kda_check::cli {

/// Lines for people, and no reason to fail: what cannot be written there is lost.
void write_stderr(const std::string& text);
/// "kda-check: warning: ..."
void warn(const std::string& text);
/// "kda-check: ..."
void say(const std::string& text);

/// Nothing is shown unless standard error is a terminal. From any thread.
///
/// A pipe whose number the environment variable KDA_CHECK_PROGRESS has gets lines "0.1234 what is being
/// done": the share of the plan that is done. It is for this process alone, and who does not read misses
/// lines.
class Progress {
 public:
  Progress();
  /// Of this thread's work from here on: what is left of so many seconds on one thread is estimated from how
  /// fast it goes. Nothing is counted where nobody looks.
  void begin(double seconds, std::size_t cases);
  /// What is being done.
  void show(const std::string& text);
  /// How much of the plan is told.
  void done(const engine::Done& done);
  void clear();
  /// Clears the line, then warns.
  void warn(const std::string& text);

 private:
  /// All under the lock.
  void draw();
  void tell();
  void clear_line();
  double share() const;
  std::string ahead() const;

  const bool terminal_;
  Descriptor pipe_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::string text_;
  engine::Done done_;
  bool shown_ = false;
  double seconds_ = 0;
  std::optional<Work> whole_ = {};
  std::condition_variable_any news_;
  std::jthread watch_ = {};  ///< draws anew every now and then; ends before what it looks at
};

/// True when the locale of the terminal is UTF-8, by LC_ALL, LC_CTYPE or LANG.
bool wants_unicode();
/// --color: "auto" colours a terminal unless NO_COLOR is set and not empty or TERM is dumb.
bool wants_color(const std::string& choice);
/// Opens what is missing of standard input, output and error, so that no file takes their numbers; writing to
/// them fails as before.
void reserve_standard_streams();

}  // namespace kda_check::cli

// A piece of a test in a process of its own: signals, limits and ends that the test itself must survive.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>

namespace kda_check::test {

/// Not one that has ended and that nobody has waited for.
inline bool lives(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);  // of one that has just ended nothing; an iterator would throw
  const std::size_t name = text.rfind(") ");
  return name != std::string::npos && text.substr(name + 2, 1).find_first_of("ZX") == std::string::npos;
}

inline void wait_until_gone(pid_t process) {
  while (lives(process)) ::usleep(1000);
}

class Child {
 public:
  /// Runs body(ready); what it returns is the exit status. `ready` tells this process so.
  explicit Child(const std::function<int(const std::function<void()>& ready)>& body) {
    if (::pipe(pipe_) != 0) std::abort();
    std::cout.flush();  // what stands there already is this process's to write
    child_ = ::fork();
    if (child_ != 0) {
      ::close(pipe_[1]);
      return;
    }
    // What started the test, nohup or a script, may have these ignored, which the program respects.
    for (const int signal : {SIGHUP, SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
    int status = 99;
    try {
      status = body([this] {
        if (::write(pipe_[1], "r", 1) != 1) ::_exit(98);
      });
    } catch (...) {
    }
    ::_exit(status);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (child_ > 0) ::kill(child_, SIGKILL), status();
    ::close(pipe_[0]);
  }

  pid_t number() const { return child_; }
  void wait_until_ready() const {
    char byte = 0;
    if (::read(pipe_[0], &byte, 1) != 1) std::abort();
  }
  void send(int signal) const { ::kill(child_, signal); }
  /// As waitpid says it, at the end of the process.
  int status() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    return status;
  }
  /// -1: it did not end by itself.
  int exit_status() {
    const int ended = status();
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  }
  /// The signal that ended it; 0: none did.
  int ending_signal() {
    const int ended = status();
    return WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  }

 private:
  int pipe_[2];
  pid_t child_;
};

}  // namespace kda_check::test

#include "base/interruption.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>

#include "base/descriptors.hpp"
#include "base/file_text.hpp"
#include "base/output_file.hpp"
#include "base/processes.hpp"
#include "base/scratch_file.hpp"
#include "base/shell.hpp"
#include "base/threads/parallel.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/temporary_folder.hpp"

namespace interruption_tests {

using namespace kda_check;
using std::chrono::milliseconds;
using test::Child;
using test::lives;
using test::TemporaryFolder;

namespace {

constexpr int was_interrupted = 7;
constexpr milliseconds a_moment{300};  // signals that come closer together are one request

/// Runs `wait`, which never ends by itself, and interrupts it.
int interrupted_while(const std::function<void()>& wait, int signal = SIGTERM) {
  Child child([&](const auto& ready) {
    prepare_signals();
    ready();
    try {
      wait();
    } catch (const Interrupted& interrupted) {
      return interrupted.signal == signal ? was_interrupted : 1;
    }
    return 2;
  });
  child.wait_until_ready();
  std::this_thread::sleep_for(milliseconds(50));
  child.send(signal);
  return child.exit_status();
}

}  // namespace

TEST_CASE("a signal that asks for the end stops work, whatever it waits for", "[interruption]") {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const int signal : ending_signals) {
    INFO("signal " << signal);
    CHECK(interrupted_while([] { run_shell("sleep 600", 600); }, signal) == was_interrupted);
    CHECK(interrupted_while([] { parallel_for(1'000'000'000, 2, [](std::size_t, int) { ::usleep(1000); }); },
                            signal) == was_interrupted);
  }
  CHECK(interrupted_while([&] { read_text(pipe, {"the pipe"}); }) == was_interrupted);
  CHECK(interrupted_while([&] { OutputFile output(pipe); }) == was_interrupted);
  CHECK(interrupted_while([] { sleep_for(milliseconds(600'000)); }) == was_interrupted);
  CHECK(interrupted_while([] {
          int ends[2];
          if (::pipe(ends) == 0) write_all(ends[1], std::string(1 << 20, 'x'));  // nobody reads
        }) == was_interrupted);
}

TEST_CASE("work that is interrupted starts no further item, and the interruption reaches the caller",
          "[interruption]") {
  Child child([](const auto&) {
    prepare_signals();
    std::atomic<int> begun{0};
    std::atomic<bool> raised{false};
    try {
      parallel_for(1000, 2, [&](std::size_t item, int) {
        ++begun;
        if (item == 3) {
          ::raise(SIGINT);
          raised = true;
        }
        // The other worker may be ahead: it waits here, so that no item is begun before the signal by chance.
        while (item > 3 && !raised) std::this_thread::yield();
      });
    } catch (const Interrupted& interrupted) {
      return interrupted.signal == SIGINT && begun <= 5 ? was_interrupted : 1;
    }
    return 2;
  });
  CHECK(child.exit_status() == was_interrupted);
}

TEST_CASE("the process ends as the signal ends one, when all is written", "[interruption]") {
  for (const int signal : ending_signals) {
    Child child([&](const auto&) -> int {
      prepare_signals();
      ::raise(signal);
      if (interruption() != signal) return 1;
      end_by_signal(signal);
    });
    CHECK(child.ending_signal() == signal);
  }
}

TEST_CASE("a process that a signal ends leaves no temporary file, though nothing is unwound",
          "[interruption]") {
  const TemporaryFolder folder;
  for (const int signal : {SIGTERM, SIGQUIT, SIGXCPU}) {
    Child child([&](const auto&) -> int {
      prepare_signals();
      const OutputFile output(folder / "file");
      const ScratchFile scratch(".h5");
      std::filesystem::create_symlink(scratch.path(), folder / "scratch");
      ::raise(signal);  // at once, but for SIGTERM
      end_by_signal(signal);
    });
    INFO("signal " << signal);
    CHECK(child.ending_signal() == signal);
    CHECK_FALSE(std::filesystem::exists(folder / "scratch"));  // where the link leads
    std::filesystem::remove(folder / "scratch");
    CHECK(folder.entries() == 0);
  }
}

TEST_CASE("what is written after an interruption is written whole", "[interruption]") {
  const TemporaryFolder folder;
  const std::string path = folder / "report";
  Child child([&](const auto&) {
    prepare_signals();
    OutputFile output(path);
    ::raise(SIGTERM);
    output.commit(std::string(1 << 20, 'x'));
    return 0;
  });
  CHECK(child.exit_status() == 0);
  CHECK(std::filesystem::file_size(path) == 1 << 20);
  CHECK(folder.entries() == 1);
}

TEST_CASE(
    "signals in quick succession are one request, a later one ends the process at once and leaves nothing",
    "[interruption]") {
  const TemporaryFolder folder;
  const std::string program = folder / "program";
  for (const int second : ending_signals) {
    Child child([&](const auto& ready) {
      prepare_signals();
      std::vector<OutputFile> files;
      for (int i = 0; i < 100; ++i) files.emplace_back(folder / std::to_string(i));
      std::thread shell([&] {
        try {
          run_shell("echo $$ >" + program + "; sleep 600 & sleep 600", 600);
        } catch (const Interrupted&) {
        }
      });
      while (!std::filesystem::exists(program)) ::usleep(1000);
      ready();
      for (;;) ::pause();  // work that notices nothing
      return 0;
    });
    child.wait_until_ready();
    CHECK(folder.entries() == 101);
    child.send(SIGTERM);
    child.send(SIGTERM);  // as timeout(1) does
    std::this_thread::sleep_for(a_moment);
    CHECK(lives(child.number()));
    child.send(second);
    CHECK(child.ending_signal() == second);
    std::filesystem::remove(program);
    CHECK(folder.entries() == 0);
  }
}

TEST_CASE("a second signal kills the programs that were started", "[interruption]") {
  const TemporaryFolder folder;
  const std::string number = folder / "number";
  Child child([&](const auto& ready) {
    prepare_signals();
    const char* const words[] = {"sh", "-c", "sleep 600 & echo $! >$0.tmp; mv $0.tmp $0; wait",
                                 number.c_str(), nullptr};
    const RunningProcesses group(start_program("/bin/sh", words, STDERR_FILENO));
    while (!std::filesystem::exists(number)) ::usleep(1000);
    ready();
    for (;;) ::pause();
    return 0;
  });
  child.wait_until_ready();
  const pid_t sleeper = std::stoi(read_text(number, {"the number"}).text);
  CHECK(lives(sleeper));
  child.send(SIGINT);
  std::this_thread::sleep_for(a_moment);
  CHECK(lives(sleeper));
  child.send(SIGINT);
  CHECK(child.ending_signal() == SIGINT);
  test::wait_until_gone(sleeper);
}

TEST_CASE("a signal that was ignored at the start stays ignored, for programs too", "[interruption]") {
  Child child([](const auto& ready) {
    ::signal(SIGHUP, SIG_IGN);  // nohup
    prepare_signals();
    ::raise(SIGHUP);
    ready();
    if (interrupted()) return 1;
    return run_shell("kill -HUP $$; exit 5", 60).status;
  });
  CHECK(child.exit_status() == 5);
}

TEST_CASE("a pipe that nobody reads and a limit on files are errors of writing, not the end",
          "[interruption]") {
  Child child([](const auto&) {
    prepare_signals();
    int ends[2];
    if (::pipe(ends) != 0) return 1;
    ::close(ends[0]);
    return !write_all(ends[1], "x") && errno == EPIPE && ::raise(SIGXFSZ) == 0 ? 0 : 2;
  });
  CHECK(child.exit_status() == 0);
}

TEST_CASE("programs begin with default signals, whatever this process was started with", "[interruption]") {
  for (const int signal : {SIGPIPE, SIGTERM, SIGUSR1, SIGPROF, SIGXFSZ}) {
    Child child([&](const auto&) {
      ::signal(signal, signal == SIGTERM ? SIG_DFL : SIG_IGN);
      sigset_t all;
      sigfillset(&all);
      ::sigprocmask(SIG_BLOCK, &all, nullptr);
      prepare_signals();
      const ShellResult shell = run_shell("kill -" + std::to_string(signal) + " $$", 60);
      const pid_t forked = fork_child();
      if (forked == 0) {
        ::raise(signal);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(forked, &status, 0);
      return shell.signal == signal && WIFSIGNALED(status) && WTERMSIG(status) == signal ? 0 : 1;
    });
    INFO("signal " << signal);
    CHECK(child.exit_status() == 0);
  }
}

TEST_CASE("a parent that ignores the end of children keeps nobody from learning how they end",
          "[interruption]") {
  Child child([](const auto&) {
    ::signal(SIGCHLD, SIG_IGN);
    prepare_signals();
    return run_shell("exit 5", 600).status;
  });
  CHECK(child.exit_status() == 5);
}

TEST_CASE("signals take no number of a standard stream that is closed", "[interruption]") {
  Child child([](const auto&) {
    ::close(STDIN_FILENO), ::close(STDOUT_FILENO);
    prepare_signals();
    return ::fcntl(STDIN_FILENO, F_GETFD) < 0 && ::fcntl(STDOUT_FILENO, F_GETFD) < 0 ? 0 : 1;
  });
  CHECK(child.exit_status() == 0);
}

TEST_CASE("a child that is forked while signals come is not taken for its parent", "[interruption]") {
  Child child([](const auto&) {
    prepare_signals();
    ::raise(SIGTERM);
    const pid_t forked = fork_child();
    if (forked == 0) ::_exit(interrupted() ? 1 : 3);
    int status = 0;
    ::waitpid(forked, &status, 0);
    return WEXITSTATUS(status);
  });
  CHECK(child.exit_status() == 3);
}

}  // namespace interruption_tests

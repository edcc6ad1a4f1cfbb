#include "cli/serve.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/descriptors.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
#include "cli/app.hpp"
#include "fixture/messages.hpp"
#include "kda/gpu/device.hpp"

namespace kda_check::cli {

namespace {

namespace fs = std::filesystem;
using plan::Words;
using std::chrono::milliseconds;

constexpr int first_file = 16, most_files = 8;
constexpr std::size_t streams = 3;  ///< what every job has: its folder, standard output and error
constexpr std::size_t longest_job = std::size_t{64} << 20;
/// After this much idleness memory goes back, and then the process ends, which has a GPU's context: who calls
/// a kernel between two jobs is back sooner.
constexpr milliseconds idle{1000}, forsaken{300'000};

struct Job {
  Words words, environment;
  std::vector<Descriptor> files;
};

[[noreturn]] void refuse_job() {
  throw Error(ErrorKind::internal, "serve: a job that is none", {}, "is the package of the same version?");
}

Words texts_of(const std::string& message) {
  Words texts;
  for (std::size_t at = 0, end; at < message.size(); at = end + 1) {
    end = message.find('\0', at);
    if (end == std::string::npos) refuse_job();
    texts.push_back(message.substr(at, end - at));
  }
  return texts;
}

std::size_t number_of(const std::string& text) {
  std::size_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{} || end != text.data() + text.size()) refuse_job();
  return number;
}

/// The folders whose paths begin so, but those that somebody has locked.
void remove_folders(const Words& beginnings) {
  for (const std::string& beginning : beginnings) {
    std::error_code failure;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(fs::path(beginning).parent_path(), failure)) {
      if (!entry.path().string().starts_with(beginning)) continue;
      const Descriptor lock(::open((entry.path() / "lock").c_str(), O_RDWR | O_CLOEXEC));
      if (lock.is_open() && ::flock(lock.number(), LOCK_EX | LOCK_NB) != 0) continue;
      fs::remove_all(entry.path(), failure);
    }
  }
}

/// Ends this process with the one at the other end of the socket.
class Watch {
 public:
  Watch(int socket, Words left_behind) : socket_(socket), left_behind_(std::move(left_behind)) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
    peer_ = peer.pid;
#ifdef SYS_pidfd_open
    // A process that was forked from it may have the other end too, and live on.
    process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, peer_, 0)));
#endif
  }
  void start() {
    std::thread([this] { watch(); }).detach();
  }

 private:
  [[noreturn]] void watch() {
    pollfd both[] = {{socket_, POLLRDHUP, 0}, {process_.number(), POLLIN, 0}};
    while (::poll(both, 2, -1) <= 0) {
    }
    constexpr int in_order_ms = 5000, step_ms = 20;
    // Its files are closed before it is gone.
    pollfd gone{process_.number(), POLLIN, 0};
    const bool is_gone = process_.is_open() ? ::poll(&gone, 1, 1000) > 0 : ::kill(peer_, 0) != 0;
    if (is_gone) remove_folders(left_behind_);
    interrupt(SIGHUP);
    for (int waited = 0; waited < in_order_ms; waited += step_ms) {
      ::usleep(step_ms * 1000);
      if (is_gone) remove_folders(left_behind_);
    }
    interrupt(SIGHUP);  // at once
    ::_exit(exit_code(ErrorKind::internal));
  }

  int socket_;
  Words left_behind_;
  pid_t peer_ = 0;
  Descriptor process_;
};

class Server {
 public:
  explicit Server(const Words& words)
      : socket_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, first_file + most_files)),
        nothing_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
        watch_(socket_.number(), Words(words.begin() + 1, words.end())) {
    ::setpgid(0, 0);  // the keyboard reaches who started it, and that one decides
    ::dup2(nothing_.number(), STDIN_FILENO);
    for (int file = first_file; file < first_file + most_files; ++file) {
      if (::fcntl(file, F_GETFD) >= 0 || ::dup3(nothing_.number(), file, O_CLOEXEC) < 0)
        throw Error(ErrorKind::environment, fmt::format("serve: file {} cannot be had", file));
    }
    watch_.start();
  }

  int serve() {
    const pid_t own = ::getpid();
    while (is_wanted()) {
      std::optional<Job> job = next();
      if (!job) lost();
      // For another process to do: a device that was lost stays so until this one ends.
      if (!kda::gpu_is_well()) return 0;
      if (::send(socket_.number(), "+", 1, MSG_NOSIGNAL) != 1) lost();
      const int code = done(std::move(*job));
      if (::getpid() != own) return code;  // a process that the job started, and that comes to its end
      const bool stays = code < exit_code(ErrorKind::environment) && kda::gpu_is_well();
      const ServedJob served{code, stays ? 1 : 0};
      if (::send(socket_.number(), &served, sizeof served, MSG_NOSIGNAL) != sizeof served) lost();
      if (!stays) return 0;
    }
    return 0;
  }

 private:
  /// Who started it is gone: the watch ends it.
  [[noreturn]] static void lost() {
    for (;;) sleep_for(milliseconds(1000));
  }

  bool is_wanted() const {
    if (wait_until_ready(socket_.number(), POLLIN, idle)) return true;
    kda::give_back_gpu_memory();
    ::malloc_trim(0);
    return wait_until_ready(socket_.number(), POLLIN, forsaken);
  }

  std::optional<Job> next() {
    const std::optional<std::string> message = fixture::receive_message(socket_.number(), longest_job);
    if (!message) return std::nullopt;
    Words texts = texts_of(*message);
    if (texts.size() < 2) refuse_job();
    const std::size_t files = number_of(texts[0]), words = number_of(texts[1]);
    if (files < streams || files > streams + most_files || words > texts.size() - 2) refuse_job();
    Job job;
    const auto first = texts.begin() + 2, end = first + static_cast<std::ptrdiff_t>(words);
    job.words.assign(first, end);
    job.environment.assign(end, texts.end());
    for (std::size_t i = 0; i < files; ++i) {
      job.files.push_back(fixture::receive_descriptor(socket_.number()));
      if (!job.files.back().is_open()) return std::nullopt;
    }
    return job;
  }

  int done(Job job) {
    become(std::move(job.environment));
    for (std::size_t i = 1; i < job.files.size(); ++i) place(job.files[i].number(), i);
    const int folder = job.files[0].number();
    const int code = guarded([&] {
      if (::fchdir(folder) != 0) throw Error(ErrorKind::environment, "cannot enter the folder of the call");
      return called_with(job.words);
    });
    std::fflush(nullptr);
    if (::chdir("/") != 0) return exit_code(ErrorKind::environment);
    for (std::size_t i = 1; i < job.files.size(); ++i) place(nothing_.number(), i);
    return code;
  }

  /// File `i` of a job where the job looks for it.
  static void place(int file, std::size_t i) {
    if (i < streams)
      ::dup2(file, STDOUT_FILENO + static_cast<int>(i) - 1);
    else
      ::dup3(file, first_file + static_cast<int>(i - streams), O_CLOEXEC);
  }

  /// Between two jobs nobody looks a variable up.
  void become(Words environment) {
    std::vector<char*> variables;
    for (std::string& variable : environment) variables.push_back(variable.data());
    variables.push_back(nullptr);
    environ = variables.data();
    environment_ = std::move(environment), variables_ = std::move(variables);
  }

  Descriptor socket_, nothing_;
  Watch watch_;
  Words environment_;
  std::vector<char*> variables_;
};

}  // namespace

int serve(const Words& words) {
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(STDIN_FILENO, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM)
    throw Error(ErrorKind::usage, "serve is for programs: its standard input is a socket");
  return (new Server(words))->serve();  // never destroyed: its environment is looked up to the very end
}

}  // namespace kda_check::cli

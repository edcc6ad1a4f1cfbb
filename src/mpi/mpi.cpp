#include "mpi/mpi.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/interruption.hpp"
#include "base/processes.hpp"
#include "base/temporary_files.hpp"
#include "base/version.hpp"
#include "mpi/functions.hpp"
#include "mpi/heartbeat.hpp"

namespace kda_check::mpi {

namespace {

std::filesystem::path own_file() { return std::filesystem::read_symlink("/proc/self/exe"); }

/// The module beside the program, or where it is installed.
const Functions& functions() {
#ifdef KDA_CHECK_HAS_MPI
  const std::filesystem::path folder = own_file().parent_path();
  for (const std::filesystem::path& path :
       {folder / module_name, folder / "../lib/kda-check" / module_name}) {
    if (!std::filesystem::exists(path)) continue;
    // MPI's own modules look for its names among those of all.
    void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (module == nullptr)
      throw Error(ErrorKind::environment, fmt::format("--segments mpi: {}", ::dlerror()));
    const void* const found = ::dlsym(module, symbol_name);
    if (found == nullptr) throw Error(ErrorKind::environment, fmt::format("--segments mpi: {}", ::dlerror()));
    return *static_cast<const Functions*>(found);
  }
#endif
  throw Error(ErrorKind::environment, "--segments mpi: this build has no MPI", {},
              "install libopenmpi-dev and openmpi-bin, and build again");
}

class Processes : public Ranks {
 public:
  Processes(std::chrono::seconds limit, std::function<void(const std::string&)> say)
      : functions_(functions()) {
    check(functions_.join(&rank_, &count_));
    heartbeat_.emplace(functions_, rank_, count_, limit, [say = std::move(say)](const std::string& what) {
      say(what);
      remove_temporary_files();
      end_running_processes();
      ::_exit(exit_code(ErrorKind::environment));  // what started the processes ends the others
    });
  }
  ~Processes() override {
    // Whoever leaves halfway is not waited for: what started the processes ends the others.
    if (std::uncaught_exceptions() > 0) return;
    heartbeat_->finish();
    functions_.leave();
  }
  std::size_t rank() const override { return static_cast<std::size_t>(rank_); }
  std::size_t count() const override { return static_cast<std::size_t>(count_); }
  void gather_all(const void* own, std::size_t bytes, void* all) override {
    check(functions_.gather_all(own, bytes, all));
  }
  void send(std::size_t to, const void* data, std::size_t bytes) override {
    check(functions_.send(static_cast<int>(to), data, bytes));
  }
  void receive(std::size_t from, void* data, std::size_t bytes) override {
    check(functions_.receive(static_cast<int>(from), data, bytes));
  }

 private:
  void check(int code) const {
    if (code == 0) return;
    char text[256] = "";
    functions_.explain(code, text, sizeof(text));
    throw Error(ErrorKind::environment, fmt::format("--segments mpi: {}", text));
  }

  const Functions& functions_;
  int rank_ = 0, count_ = 1;
  std::optional<Heartbeat> heartbeat_;
};

/// What a rank says of itself, in as many bytes as any other.
struct Said {
  char program[128], work[64], problem[320];
};
template <std::size_t size>
void copy(const std::string& text, char (&to)[size]) {
  std::strncpy(to, text.c_str(), size - 1);
}

/// The rank as what started it calls it, before MPI does.
std::string rank_of_environment() {
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* const rank = std::getenv(name)) return std::string("rank ") + rank;
  return "the run";
}

}  // namespace

std::unique_ptr<Ranks> join(std::chrono::seconds limit, std::function<void(const std::string&)> say) {
  return std::make_unique<Processes>(limit, std::move(say));
}

bool agree(Ranks& ranks, const Identity& own) {
  Said said{};
  copy(own.program, said.program), copy(own.work, said.work), copy(own.problem, said.problem);
  std::vector<Said> all(ranks.count());
  ranks.gather_all(&said, sizeof(said), all.data());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Said &first = all[0], &other = all[rank];
    std::string differs;
    if (std::strcmp(first.program, other.program) != 0)
      differs = fmt::format("is another program: {} beside {} of rank 0", other.program, first.program);
    else if (other.problem[0] != '\0')
      differs = other.problem;
    else if (std::strcmp(first.work, other.work) != 0)
      differs = "has other work: its files, or its words, are not those of rank 0";
    if (differs.empty()) continue;
    if (ranks.rank() != 0) return false;
    throw Error(ErrorKind::environment,
                fmt::format("--segments mpi: rank {} {}{}", rank,
                            other.problem[0] != '\0' ? "cannot go on: " : "", differs));
  }
  return true;
}

std::string program_identity() {
  std::ifstream file(own_file(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Hash hash;
  hash.add(bytes);
  return fmt::format("kda-check {} ({})", version, hash.text());
}

int guarded(const std::function<int()>& work) {
  const pid_t parent = ::getpid(), child = fork_child();
  if (child < 0)
    throw Error(ErrorKind::environment, fmt::format("--segments mpi: no process: {}", std::strerror(errno)));
  if (child == 0) {
    end_with_parent(parent);
    prepare_signals();
    return work();
  }
  const RunningProcesses bound(child);
  try {
    while (!has_ended(child)) sleep_for(std::chrono::milliseconds(5));
  } catch (const Interrupted& by) {  // what started the ranks ends them all
    ::kill(child, by.signal);
    ::kill(child, SIGCONT);  // one that is stopped, too
    for (int turn = 0; turn < 400 && !has_ended(child); ++turn) ::usleep(5000);
    end_child(child);
    throw;
  }
  const int status = end_child(child);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  throw Error(ErrorKind::environment,
              fmt::format("--segments mpi: {} was ended by signal {} ({})", rank_of_environment(),
                          WTERMSIG(status), ::strsignal(WTERMSIG(status))));
}

}  // namespace kda_check::mpi

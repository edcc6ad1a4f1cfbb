#include "base/temporary_files.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace kda_check {

namespace {

constexpr int fatal_signals[] = {SIGINT, SIGTERM, SIGHUP};

// Lock-free atomics only: a handler may interrupt anything. Paths beyond the last slot are not removed.
std::atomic<const char*> kept[64];
std::atomic<pid_t> owner{0};
std::atomic<pid_t> running_group{0};
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

extern "C" void remove_and_die(int signal) {
  if (::getpid() == owner.load()) {  // a child of this process removes nothing
    if (const pid_t group = running_group.load(); group > 0) ::kill(-group, SIGKILL);
    for (std::atomic<const char*>& slot : kept)
      if (const char* const path = slot.load()) ::unlink(path);
  }
  ::raise(signal);  // SA_RESETHAND has put the default back; it strikes on return
}

void install_handlers() {
  owner.store(::getpid());
  for (const int signal : fatal_signals) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;  // nohup
    action.sa_handler = remove_and_die;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

void install_handlers_once() {
  static const bool installed = (install_handlers(), true);
  static_cast<void>(installed);
}

}  // namespace

TemporaryProcesses::TemporaryProcesses(int group) {
  install_handlers_once();
  running_group.store(group);
}

TemporaryProcesses::~TemporaryProcesses() { running_group.store(0); }

TemporaryFile::TemporaryFile(std::string path) : path_(std::make_unique<const std::string>(std::move(path))) {
  install_handlers_once();
  for (std::atomic<const char*>& slot : kept) {
    const char* free = nullptr;
    if (slot.compare_exchange_strong(free, path_->c_str())) return;
  }
}

TemporaryFile::~TemporaryFile() {
  if (!path_) return;
  for (std::atomic<const char*>& slot : kept) {
    const char* mine = path_->c_str();
    if (slot.compare_exchange_strong(mine, nullptr)) return;
  }
}

}  // namespace kda_check

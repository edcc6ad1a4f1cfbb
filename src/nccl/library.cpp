#include "nccl/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "base/shell.hpp"

namespace kda_check::nccl {

namespace {

constexpr char file_name[] = "libnccl.so.2";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::environment, "--segments nccl: " + what, {},
              "pip install nvidia-nccl-cu13, or KDA_CHECK_NCCL=/path/to/libnccl.so.2");
}

#ifdef KDA_CHECK_LOADS_LIBRARIES

/// Where python3 has the wheel of NCCL; empty without one.
std::string folder_of_wheel() {
  const ShellResult found = run_shell(
      "python3 -c 'import importlib.util as u; "
      "print(*u.find_spec(\"nvidia.nccl\").submodule_search_locations)'",
      20);
  if (found.status != 0 || found.signal != 0 || found.timed_out) return {};
  return found.tail.substr(0, found.tail.find_first_of("\r\n"));
}

std::string path_of_wheel() {
  const std::string folder = folder_of_wheel();
  return folder.empty() ? std::string() : folder + "/lib/" + file_name;
}

template <class Function>
void find(void* library, const std::string& path, const char* name, Function& function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) refuse(fmt::format("{} has no {}", path, name));
  std::memcpy(&function, &symbol, sizeof(function));
}

Library functions_of(void* library, std::string path) {
  Library found{};
  find(library, path, "ncclGetVersion", found.get_version);
  find(library, path, "ncclCommInitAll", found.init_all);
  find(library, path, "ncclAllGather", found.all_gather);
  find(library, path, "ncclCommGetAsyncError", found.async_error);
  find(library, path, "ncclCommDestroy", found.destroy);
  find(library, path, "ncclGetErrorString", found.explain);
  found.path = std::move(path);
  return found;
}

#endif

}  // namespace

#ifdef KDA_CHECK_LOADS_LIBRARIES
Library load() {
  std::string path = file_name, why;
  const auto opened = [&] {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr && why.empty()) why = ::dlerror();
    return library;
  };
  if (const char* const named = std::getenv("KDA_CHECK_NCCL"); named != nullptr && *named != '\0') {
    path = named;
    if (void* const library = opened()) return functions_of(library, path);
    refuse("KDA_CHECK_NCCL: " + why);
  }
  if (void* const library = opened()) return functions_of(library, path);
  path = path_of_wheel();
  if (!path.empty())
    if (void* const library = opened()) return functions_of(library, path);
  refuse("no NCCL: " + why);
}
#else
Library load() { refuse("this build loads no libraries"); }
#endif

std::string version_text(int version) {
  if (version < 10000) return fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace kda_check::nccl

#include "base/shortage.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "base/descriptors.hpp"
#include "base/memory.hpp"

namespace kda_check {

ErrorKind kind_of_failed_input(int reason) {
  const bool is_lack = reason == EMFILE || reason == ENFILE || reason == ENOMEM || reason == ENOBUFS;
  return is_lack ? ErrorKind::environment : ErrorKind::input;
}

void require_stack() {
  constexpr std::size_t wanted = std::size_t{512} << 10;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < wanted)
    throw Error(ErrorKind::environment,
                fmt::format("the stack may have {}; wanted at least {}", size_text(limit.rlim_cur),
                            size_text(wanted)),
                {}, "ulimit -s 8192");
}

void require_room(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorKind::environment, fmt::format("out of memory: wanted {} more", size_text(bytes)), {},
                "is it ulimit -v, or the memory of the container?");
  ::munmap(memory, bytes);
  if (!Descriptor(::eventfd(0, EFD_CLOEXEC)).is_open())
    throw Error(ErrorKind::environment, fmt::format("cannot open a file: {}", std::strerror(errno)), {},
                "ulimit -n 1024");
}

}  // namespace kda_check

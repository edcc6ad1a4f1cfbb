// Preloaded, this refuses a process one block of memory: the first of a KiB or more that it asks for after
// its first file is in place.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

enum State : int { no_file_yet, refuse_next, refused };
std::atomic<int> state{no_file_yet};

}  // namespace

extern "C" int rename(const char* from, const char* to) noexcept {
  using Rename = int (*)(const char*, const char*);
  const int result = reinterpret_cast<Rename>(::dlsym(RTLD_NEXT, "rename"))(from, to);
  int expected = no_file_yet;  // of a report, not of the GPU driver's cache
  if (std::strstr(to, "kda-check-cli-") != nullptr) state.compare_exchange_strong(expected, refuse_next);
  return result;
}

void* operator new(std::size_t bytes) {
  int expected = refuse_next;
  if (bytes >= 1024 && state.compare_exchange_strong(expected, refused)) throw std::bad_alloc();
  if (void* const block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}

void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

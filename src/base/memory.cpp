#include "base/memory.hpp"

#if defined(__GLIBC__) || __has_include(<malloc.h>)
#include <malloc.h>
#endif

namespace kda_check {

void return_large_blocks_to_the_system() {
#ifdef M_MMAP_THRESHOLD
  // Set by hand, the threshold no longer grows with every large block that is freed.
  mallopt(M_MMAP_THRESHOLD, 256 * 1024);
#endif
}

}  // namespace kda_check

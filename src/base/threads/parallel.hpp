// Work over independent items. The number of threads never changes a result: every item writes its own
// output, and whoever reduces over items does so afterwards, in the order of the items.
#pragma once

#include <cstddef>
#include <functional>

namespace kda_check {

/// Threads this process may use: the processors in its affinity mask.
int available_threads();

/// Calls body(item, worker) once for every item in [0, count), on at most `threads` threads; worker < threads
/// and is owned by one thread at a time (for per-worker scratch memory). Items start in order. The first
/// exception thrown by a body is rethrown here after all running items have ended; a signal that asks for the
/// end lets no item begin any more, and Interrupted is thrown.
void parallel_for(std::size_t count, int threads,
                  const std::function<void(std::size_t item, int worker)>& body);

}  // namespace kda_check

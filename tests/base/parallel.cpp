#include "base/threads/parallel.hpp"

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>
#include "support/catch.hpp"

#include "base/threads/shared_work.hpp"

namespace parallel_tests {

using kda_check::parallel_for;
using kda_check::SharedWork;

namespace {

constexpr int threads = 8;

/// Items [first, last) of a piece of work.
struct Span {
  std::size_t first, last;
};

/// Adds one to each of its items, and hands on half of what is left whenever that is wanted.
void count(SharedWork<Span>& work, Span piece, std::vector<std::atomic<int>>& done) {
  for (std::size_t i = piece.first; i < piece.last; ++i) {
    if (work.is_wanted() && piece.last - i > 1) {
      const std::size_t middle = i + (piece.last - i) / 2;
      work.hand_on({middle, piece.last});
      piece.last = middle;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    ++done[i];
  }
}

}  // namespace

TEST_CASE("Every item is done once, whoever asks and however often") {
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::atomic<int>> done(64);
    parallel_for(8, threads, [&](std::size_t outer, int) {
      parallel_for(8, threads, [&](std::size_t inner, int) { ++done[outer * 8 + inner]; });
    });
    for (const std::atomic<int>& times : done) REQUIRE(times == 1);
  }
}

TEST_CASE("A worker is one thread at a time") {
  std::vector<std::atomic<int>> busy(threads);
  std::atomic<bool> shared{false};
  for (int repeat = 0; repeat < 200; ++repeat)
    parallel_for(32, threads, [&](std::size_t, int worker) {
      if (busy[static_cast<std::size_t>(worker)].fetch_add(1) != 0) shared = true;
      std::this_thread::yield();
      --busy[static_cast<std::size_t>(worker)];
    });
  CHECK_FALSE(shared);
}

TEST_CASE("The first failure of an item is thrown when all that run have ended") {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<int> running{0};
    CHECK_THROWS_AS(parallel_for(64, threads,
                                 [&](std::size_t item, int) {
                                   ++running;
                                   if (item == 5) {
                                     --running;
                                     throw std::runtime_error("five");
                                   }
                                   std::this_thread::yield();
                                   --running;
                                 }),
                    std::runtime_error);
    CHECK(running == 0);
  }
}

TEST_CASE("One long piece of work is shared, and every part of it is done once") {
  std::vector<std::atomic<int>> done(4000);
  std::mutex mutex;
  std::set<std::thread::id> who;
  SharedWork<Span> work({{0, done.size()}});
  work.run(threads, [&](const Span& piece) {
    {
      const std::lock_guard lock(mutex);
      who.insert(std::this_thread::get_id());
    }
    count(work, piece, done);
  });
  for (const std::atomic<int>& times : done) REQUIRE(times == 1);
  CHECK(who.size() > 1);  // all of them, but on a machine that has other things to do
}

TEST_CASE("Pieces of work are done on one thread and on more threads than there are pieces") {
  for (const int used : {1, 3, threads})
    for (const std::size_t pieces : {0U, 1U, 2U, 50U}) {
      std::vector<std::atomic<int>> done(pieces * 4);
      std::vector<Span> spans;
      for (std::size_t i = 0; i < pieces; ++i) spans.push_back({4 * i, 4 * i + 4});
      SharedWork<Span> work(spans);
      work.run(used, [&](const Span& piece) { count(work, piece, done); });
      for (const std::atomic<int>& times : done) REQUIRE(times == 1);
    }
}

TEST_CASE("A piece of work that fails ends those who wait for a part of it") {
  for (int repeat = 0; repeat < 50; ++repeat) {
    SharedWork<int> work({1});
    CHECK_THROWS_AS(work.run(threads,
                             [](int) {
                               std::this_thread::sleep_for(std::chrono::milliseconds(1));
                               throw std::runtime_error("failed");
                             }),
                    std::runtime_error);
  }
}

}  // namespace parallel_tests

// GPUs as ranks, with a library that stands in for NCCL and memory of the host.
#include "nccl/devices.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>

#include "base/error.hpp"
#include "nccl/library.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"

namespace devices_tests {

using namespace kda_check;

namespace {

/// A word of the environment, for as long as it lives.
class Word {
 public:
  Word(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;
  ~Word() { ::unsetenv(name_); }

 private:
  const char* name_;
};

const auto always_done = [] { return true; };

/// Every rank hands out three numbers of its own, and gets those of all.
void exchange(Peers& peers) {
  const std::size_t count = peers.count(), own = peers.rank();
  std::vector<std::size_t> blocks(3 * count, 99);
  for (std::size_t i = 0; i < 3; ++i) blocks[3 * own + i] = 10 * own + i;
  peers.gather_all(blocks.data(), 3 * sizeof(std::size_t), always_done);
  for (std::size_t rank = 0; rank < count; ++rank)
    for (std::size_t i = 0; i < 3; ++i)
      if (blocks[3 * rank + i] != 10 * rank + i) throw Error(ErrorKind::internal, "other bytes");
}

/// How a process ends that exchanges on three ranks, one of which may stall for so many seconds.
int status_of_exchange(const char* fault, double patience) {
  const Word library("KDA_CHECK_NCCL", KDA_CHECK_STAND_IN_LIBRARY), wrong("KDA_CHECK_STAND_IN", fault);
  test::Child child([patience](const auto&) {
    nccl::Devices devices({0, 1, 2}, {.start = 20, .exchange = patience});
    try {
      devices.run(exchange);
    } catch (const Error&) {
      return 77;
    }
    return 0;
  });
  return child.exit_status();
}

}  // namespace

TEST_CASE("ranks get what every other one hands out, again and again", "[nccl]") {
  const Word library("KDA_CHECK_NCCL", KDA_CHECK_STAND_IN_LIBRARY);
  for (const int count : {1, 2, 5}) {
    std::vector<int> numbers(static_cast<std::size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    nccl::Devices devices(numbers);
    CHECK(devices.count() == numbers.size());
    CHECK(devices.device(numbers.size() - 1) == count - 1);
    for (int run = 0; run < 3; ++run)
      devices.run([](Peers& peers) {
        for (int turn = 0; turn < 20; ++turn) exchange(peers);
      });
  }
}

TEST_CASE("ranks agree on the least of what they say", "[nccl]") {
  const Word library("KDA_CHECK_NCCL", KDA_CHECK_STAND_IN_LIBRARY);
  nccl::Devices devices({0, 0, 0, 0});
  std::mutex mutex;
  std::vector<std::size_t> said;
  devices.run([&](Peers& peers) {
    const std::size_t first = peers.least(7 - peers.rank()), second = peers.least(40 + peers.rank());
    const std::lock_guard lock(mutex);
    said.push_back(first), said.push_back(second);
  });
  CHECK(said.size() == 8);
  for (std::size_t i = 0; i < said.size(); ++i) CHECK(said[i] == (i % 2 == 0 ? 4u : 40u));
}

TEST_CASE("a rank that fails before an exchange ends the run, names itself, and spoils no other run",
          "[nccl]") {
  const Word library("KDA_CHECK_NCCL", KDA_CHECK_STAND_IN_LIBRARY);
  nccl::Devices devices({0, 1, 2});
  for (const bool waits : {false, true}) {
    CHECK_THROWS_WITH(devices.run([&](Peers& peers) {
      if (peers.rank() == 1)
        throw Error(ErrorKind::environment, "GPU: no memory for q", {}, "a smaller shape");
      if (waits)
        peers.least(1);
      else
        exchange(peers);
    }),
                      "rank 1: GPU: no memory for q; hint: a smaller shape");
    devices.run(exchange);
  }
}

TEST_CASE("an exchange that fails, or is not done, ends the process", "[nccl]") {
  constexpr double long_enough = 600, at_once = 0.2;
  CHECK(status_of_exchange("", long_enough) == 0);
  for (const auto& [fault, patience] : {std::pair{"gather:0", long_enough},
                                        {"gather:2", long_enough},
                                        {"stall:0", at_once},
                                        {"stall:1", at_once}}) {
    INFO(fault);
    CHECK(status_of_exchange(fault, patience) == exit_code(ErrorKind::environment));
  }
}

TEST_CASE("without a library that is NCCL's there are no ranks, and a line says so", "[nccl]") {
  {
    const Word library("KDA_CHECK_NCCL", "/nowhere/libnccl.so.2");
    CHECK_THROWS_WITH(nccl::load(),
                      ContainsSubstring("--segments nccl: KDA_CHECK_NCCL: /nowhere/libnccl.so.2"));
  }
  {
    const Word library("KDA_CHECK_NCCL", "libc.so.6");
    CHECK_THROWS_WITH(nccl::load(), ContainsSubstring("libc.so.6 has no ncclGetVersion"));
  }
  const Word library("KDA_CHECK_NCCL", KDA_CHECK_STAND_IN_LIBRARY), fault("KDA_CHECK_STAND_IN", "start");
  CHECK_THROWS_WITH(nccl::Devices({0, 1}), ContainsSubstring("ncclCommInitAll: unhandled system error"));
}

TEST_CASE("the environment says which devices are ranks", "[nccl]") {
  CHECK(nccl::devices_named(3) == std::vector<int>{0, 1, 2});
  {
    const Word named("KDA_CHECK_NCCL_DEVICES", "1,0,1");
    CHECK(nccl::devices_named(2) == std::vector<int>{1, 0, 1});
  }
  for (const char* const words : {"2", "0,", "a", "-1", "0 1", ",0"}) {
    const Word named("KDA_CHECK_NCCL_DEVICES", words);
    CHECK_THROWS_WITH(nccl::devices_named(2), ContainsSubstring("numbers below 2"));
  }
}

TEST_CASE("a version of NCCL is a number of either length", "[nccl]") {
  CHECK(nccl::version_text(2708) == "2.7.8");
  CHECK(nccl::version_text(22809) == "2.28.9");
}

}  // namespace devices_tests

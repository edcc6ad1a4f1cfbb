#include "nccl/devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/names.hpp"
#include "base/processes.hpp"
#include "base/temporary_files.hpp"
#include "nccl/library.hpp"

namespace kda_check::nccl {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

constexpr char hint[] = "NCCL_DEBUG=WARN says more, CUDA_VISIBLE_DEVICES chooses the devices";

Error error_of(const std::string& what, const std::string& what_to_do = hint) {
  return Error(ErrorKind::environment, "--segments nccl: " + what, {}, what_to_do);
}

/// What a rank ends with when another one failed: not worth telling.
struct Left {};

/// Threads that will not come back hold on to what they use: nothing ends them but the end of the process.
[[noreturn]] void end_process(const Error& error) {
  static std::mutex first_alone;
  first_alone.lock();
  end_running_processes();
  std::fflush(stdout);
  std::fprintf(stderr, "kda-check: error: %s\n", printable(error.what()).c_str());
  remove_temporary_files();
  std::_Exit(exit_code(ErrorKind::environment));
}

}  // namespace

struct Devices::State {
  State(std::vector<int> numbers, const Patience& how_long)
      : devices(std::move(numbers)),
        patience(how_long),
        library(load()),
        communicators(devices.size(), nullptr) {}

  void check(Result result, const char* doing) const {
    if (result != success && result != in_progress)
      throw Error(ErrorKind::environment, fmt::format("{}: {}", doing, library.explain(result)), {}, hint);
  }
  void begin() {
    const std::lock_guard lock(mutex);
    has_failed = false, failure = nullptr;
    arrived = 0, least = std::numeric_limits<std::size_t>::max();
    exchanging.assign(devices.size(), std::nullopt);
    running = devices.size();
  }
  void end(std::size_t rank, std::exception_ptr why) {
    const std::lock_guard lock(mutex);
    if (why && !failure) failure = std::move(why), failed_rank = rank;
    if (failure) has_failed = had_failure = true;
    --running;
    changed.notify_all();
  }
  /// Waits for all ranks; the least of what they say.
  std::size_t meet(std::size_t own) {
    std::unique_lock lock(mutex);
    if (has_failed) throw Left();
    least = std::min(least, own);
    const std::size_t meeting = meetings;
    if (++arrived == devices.size()) {
      agreed = least, least = std::numeric_limits<std::size_t>::max();
      arrived = 0, ++meetings;
      changed.notify_all();
    } else {
      changed.wait(lock, [&] { return has_failed || meetings != meeting; });
      if (meetings == meeting) throw Left();
    }
    return agreed;
  }
  void mark(std::size_t rank, std::optional<Clock::time_point> since) {
    const std::lock_guard lock(mutex);
    exchanging[rank] = since;
  }

  const std::vector<int> devices;
  const Patience patience;
  const Library library;
  std::vector<Communicator> communicators;
  std::mutex one_run;

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t running = 0, failed_rank = 0;
  std::atomic<bool> has_failed = false;
  bool had_failure = false;  ///< in any run
  std::exception_ptr failure;
  std::size_t arrived = 0, meetings = 0, agreed = 0, least = 0;
  std::vector<std::optional<Clock::time_point>> exchanging;  ///< since when
};

/// One rank, on its thread.
class Devices::Member : public Peers {
 public:
  Member(State& state, std::size_t rank) : state_(state), rank_(rank) {}

  std::size_t rank() const override { return rank_; }
  std::size_t count() const override { return state_.devices.size(); }
  std::size_t least(std::size_t own) override { return state_.meet(own); }

  void gather_all(void* blocks, std::size_t bytes, const std::function<bool()>& is_done) override {
    for (int turn = 0; !is_done(); ++turn) {  // its own work
      if (state_.has_failed) throw Left();
      pause(turn);
    }
    state_.meet(0);  // from here on an exchange takes as long as the bytes take
    state_.mark(rank_, Clock::now());
    try {
      exchange(blocks, bytes, is_done);
    } catch (const Error& error) {
      end_process(error_of(fmt::format("rank {}: {}", rank_, error.found()), error.hint()));
    }
    state_.mark(rank_, std::nullopt);
  }

 private:
  void exchange(void* blocks, std::size_t bytes, const std::function<bool()>& is_done) const {
    const Library& library = state_.library;
    const Communicator communicator = state_.communicators[rank_];
    const auto* const own = static_cast<const char*>(blocks) + rank_ * bytes;
    state_.check(library.all_gather(own, blocks, bytes, bytes_type, communicator, nullptr), "ncclAllGather");
    for (int turn = 0; !is_done(); ++turn) {
      Result error = success;
      state_.check(library.async_error(communicator, &error), "ncclCommGetAsyncError");
      state_.check(error, "an exchange");
      pause(turn);
    }
  }
  static void pause(int turn) {
    if (turn < 2000) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  State& state_;
  const std::size_t rank_;
};

Devices::Devices(std::vector<int> devices, const Patience& patience)
    : state_(std::make_shared<State>(std::move(devices), patience)) {
  // Else a GPU reads the memory of another by its address, which memory of a pool does not allow.
  ::setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);
  std::optional<Result> result;
  std::thread([state = state_, &result] {
    const Result found = state->library.init_all(
        state->communicators.data(), static_cast<int>(state->devices.size()), state->devices.data());
    const std::lock_guard lock(state->mutex);
    result = found;
    state->changed.notify_all();
  }).detach();
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, duration_of(patience.start), [&] { return result.has_value(); }))
    end_process(error_of(fmt::format("ncclCommInitAll was not done after {:.3g} s", patience.start)));
  if (*result != success)
    throw error_of(fmt::format("ncclCommInitAll: {}", state_->library.explain(*result)));
}

Devices::~Devices() {
  if (state_->had_failure) return;  // on a device that is lost even this may wait
  for (const Communicator communicator : state_->communicators)
    if (communicator != nullptr) state_->library.destroy(communicator);
}

std::size_t Devices::count() const { return state_->devices.size(); }
int Devices::device(std::size_t rank) const { return state_->devices[rank]; }

std::string Devices::library() const {
  int version = 0;
  state_->check(state_->library.get_version(&version), "ncclGetVersion");
  return fmt::format("NCCL {} ({})", version_text(version), state_->library.path);
}

void Devices::run(const std::function<void(Peers&)>& work) {
  State& state = *state_;
  const std::lock_guard one(state.one_run);
  state.begin();
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < count(); ++rank)
    threads.emplace_back([&, rank] {
      std::exception_ptr failure;
      try {
        Member member(state, rank);
        work(member);
      } catch (const Left&) {
      } catch (...) {
        failure = std::current_exception();
      }
      state.end(rank, std::move(failure));
    });
  watch();
  for (std::thread& thread : threads) thread.join();
  if (!state.failure) return;
  try {
    std::rethrow_exception(state.failure);
  } catch (const Error& error) {
    if (count() == 1) throw;
    throw Error(error.kind(), fmt::format("rank {}: {}", state.failed_rank, error.found()), {}, error.hint());
  }
}

/// Until all threads have ended; ends the process for an exchange that does not.
void Devices::watch() const {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const Clock::duration turn = duration_of(std::min(0.5, state.patience.exchange / 4));
  while (!state.changed.wait_for(lock, turn, [&] { return state.running == 0; }))
    for (std::size_t rank = 0; rank < count(); ++rank)
      if (state.exchanging[rank] && seconds_since(*state.exchanging[rank]) > state.patience.exchange)
        end_process(error_of(
            fmt::format("rank {}: an exchange was not done after {:.3g} s", rank, state.patience.exchange)));
}

std::vector<int> devices_named(std::size_t visible) {
  std::vector<int> devices;
  const char* const named = std::getenv("KDA_CHECK_NCCL_DEVICES");
  if (named == nullptr || *named == '\0') {
    for (std::size_t device = 0; device < visible; ++device) devices.push_back(static_cast<int>(device));
    return devices;
  }
  const std::string_view words = named;
  for (std::size_t at = 0; at <= words.size();) {
    const std::string_view word = words.substr(at, words.find(',', at) - at);
    int device = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), device);
    if (error != std::errc() || end != word.data() + word.size() || device < 0 ||
        static_cast<std::size_t>(device) >= visible || devices.size() == 1024)
      throw Error(ErrorKind::usage,
                  fmt::format("KDA_CHECK_NCCL_DEVICES={}: wanted numbers below {}, a device for each rank",
                              words, visible),
                  {}, "KDA_CHECK_NCCL_DEVICES=0,1");
    devices.push_back(device);
    at += word.size() + 1;
  }
  return devices;
}

}  // namespace kda_check::nccl

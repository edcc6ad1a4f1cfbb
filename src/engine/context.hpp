// One problem of a plan at work: its inputs, its answers and its gate statistics, each made once for all
// cases that need it, and given up when memory is short.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/answered.hpp"
#include "engine/comparing.hpp"
#include "hypotheses/launch_search.hpp"
#include "plan/plan.hpp"

namespace kda_check::engine {

/// What a run has, and where it says something while it works; the functions may be empty.
struct Resources {
  int threads = 1;
  fixture::ReadLimits limits;
  bool draw = false;  ///< keep what drawings need
  std::function<void(const std::string&)> warning = {};
  std::function<void(const std::string&)> progress = {};
};

/// Thrown where an answer does not come: what that means for its cases, and why.
struct NoAnswer {
  judge::Verdict verdict;  ///< fail or skipped
  std::string reason;
};

class Context {
 public:
  /// Throws Error{input} for a source that cannot be read.
  Context(const plan::Problem& plan, const Resources& resources);

  const plan::Problem& plan() const { return plan_; }
  const kda::Problem& problem() const { return problem_; }
  const Resources& resources() const { return resources_; }
  const plan::Source::Opened& source() const { return source_; }

  /// Computed, read or asked for when it is needed first. Valid until the next call of an answer that is not
  /// kept. Throws NoAnswer; of recorded ones Error{input}.
  const Answered& answer(std::size_t index, kda::Pass pass);
  /// What the CPU gives for an answer of a GPU variant.
  const Answered& replay(std::size_t index, kda::Pass pass);
  /// An answer of the plan; where its launch was left open and it is taken for a recorded answer, or held
  /// against one, with the launch that reproduces that best.
  const plan::Answer& with_launch(std::size_t index, kda::Pass pass);
  /// Answers used since the last call of this may be given up from now on.
  void release() { in_use_.clear(); }
  /// Whether this answer, too, fits beside those in use.
  bool fits(std::size_t index, kda::Pass pass) const;

  const kda::GateStatistics& gates(std::size_t chunk_size);
  std::shared_future<LimitGrounds> grounds(kda::Pass pass, std::size_t chunk_size);
  /// Begins with both on other threads, gates in chunks of these sizes: whoever asks for them waits.
  void begin_ahead(kda::Pass pass, const std::set<std::size_t>& chunk_sizes);
  /// As `asked` wants its oracle, if any.
  Truth truth(kda::Pass pass, const plan::Request& asked, std::size_t chunk_size);
  /// The oracle of a pass on the device it was asked for, or with a warning on another.
  kda::OracleOptions oracle(kda::OraclePrecision precision, const plan::Request& asked, kda::Pass pass);
  /// A warning, once, that twins compute on the CPU, where they were to on the GPU.
  Twins::CpuInstead twins_on_cpu_instead();
  /// `pass`: its name.
  bool oracle_left_its_device(std::string_view pass) const;
  /// The options of a computed answer, with the threads and the memory there are.
  kda::RunOptions options_of(const plan::Answer& answer) const;
  void progress(const std::string& what) const;
  /// Bytes of the budget beside the inputs and the answers in use.
  std::size_t memory_left() const;

  /// Failures of single answers: a device, memory.
  std::vector<report::Failure> failures;

 private:
  using Key = std::pair<std::size_t, kda::Pass>;
  static constexpr std::size_t replays = std::size_t{1} << 32;  ///< added to an index: its replay

  /// The recorded answer whose launch an answer has.
  std::optional<std::size_t> launched_as(std::size_t index) const;
  template <class Make>
  const Answered& kept(Key key, std::size_t bytes, Make make);
  /// A failure of the run, and no answer.
  [[noreturn]] void fail(const plan::Answer& who, const std::string& message, int exit_code);
  Answered computed(const plan::Answer& answer, kda::Pass pass);
  Answered recorded(const plan::Answer& answer, kda::Pass pass) const;
  std::size_t bytes_of(const Key& key) const;
  std::size_t budget() const;
  const std::shared_future<kda::GateStatistics>& gates_to_come(std::size_t chunk_size);
  std::shared_future<LimitGrounds> grounds_to_come(kda::Pass pass, std::size_t chunk_size, int threads);

  const plan::Problem& plan_;
  const Resources& resources_;
  plan::Source::Opened source_;
  kda::Problem problem_;
  std::shared_ptr<const void> inputs_on_gpu_ = {};  ///< what runs on this problem there goes up once
  std::map<Key, std::unique_ptr<Answered>> answers_;
  std::map<Key, NoAnswer> without_;
  std::map<Key, plan::Answer> launched_;
  std::set<Key> in_use_;
  std::map<std::size_t, std::shared_future<kda::GateStatistics>> gates_;
  std::map<Key, std::shared_future<LimitGrounds>> grounds_;  ///< by chunk size and pass
  std::set<kda::Pass> left_its_device_;                      ///< whose oracle should have run on a GPU
  bool twins_left_their_device_ = false;                     ///< twins, too
  std::future<void> ahead_ = {};                             ///< the last: it ends before what it uses
};

}  // namespace kda_check::engine

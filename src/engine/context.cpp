#include "engine/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/threads/work.hpp"
#include "engine/alone_on_gpu.hpp"
#include "engine/external.hpp"
#include "kda/gpu/kept_inputs.hpp"
#include "kda/pool/pool.hpp"
#include "plan/cost.hpp"
#include "plan/replay.hpp"

namespace kda_check::engine {

namespace {

/// One program of the user's at a time: others would share its memory.
std::mutex program;

/// As stored, or rounded.
kda::Problem read(plan::Source::Opened& source, const plan::Problem& plan) {
  kda::Problem problem = source.take_problem();
  return plan.rounded_to ? kda::with_inputs_rounded_to(problem, *plan.rounded_to) : std::move(problem);
}

}  // namespace

Context::Context(const plan::Problem& plan, const Resources& resources)
    : plan_(plan),
      resources_(resources),
      source_(plan.source->open(resources.limits)),
      problem_(read(source_, plan)),
      inputs_on_gpu_(kda::kept_on_gpu(problem_)) {}

void Context::progress(const std::string& what) const {
  if (resources_.progress) resources_.progress(fmt::format("{}: {}", plan_.source->name(), what));
}

kda::RunOptions Context::options_of(const plan::Answer& answer) const {
  kda::RunOptions options = answer.options;
  options.threads = resources_.threads;
  options.memory_limit = resources_.limits.memory_budget;
  return options;
}

std::size_t Context::budget() const {
  // What is left beside the inputs; something must be.
  const std::size_t all = resources_.limits.memory_budget, inputs = plan_.source->bytes();
  return std::max(all / 4, all > inputs ? all - inputs : 0);
}

std::size_t Context::bytes_of(const Key& key) const {
  return plan::answer_bytes(plan_.outline, key.second, plan_.answers[key.first % replays].dtype);
}

std::size_t Context::memory_left() const {
  std::size_t bytes = 0;
  for (const Key& key : in_use_) bytes += bytes_of(key);
  return budget() - std::min(budget(), bytes);
}

bool Context::fits(std::size_t index, kda::Pass pass) const {
  if (in_use_.empty() || in_use_.contains({index, pass})) return true;
  return bytes_of({index, pass}) <= memory_left();
}

template <class Make>
const Answered& Context::kept(Key key, std::size_t bytes, Make make) {
  in_use_.insert(key);
  if (const auto known = answers_.find(key); known != answers_.end()) return *known->second;
  if (const auto none = without_.find(key); none != without_.end()) throw none->second;
  std::size_t held = bytes;
  for (const auto& [other, answer] : answers_) held += bytes_of(other);
  for (auto at = answers_.begin(); at != answers_.end() && held > budget();) {
    if (in_use_.contains(at->first)) {
      ++at;
    } else {
      held -= bytes_of(at->first);
      at = answers_.erase(at);
    }
  }
  try {
    return *answers_.emplace(key, std::make_unique<Answered>(make())).first->second;
  } catch (const NoAnswer& none) {
    in_use_.erase(key);
    without_.emplace(key, none);
    throw;
  } catch (...) {
    in_use_.erase(key);
    throw;
  }
}

const Answered& Context::answer(std::size_t index, kda::Pass pass) {
  const plan::Answer& who = with_launch(index, pass);
  const Key key{index, pass};
  return kept(key, bytes_of(key), [&]() -> Answered {
    if (who.origin == plan::Answer::Origin::recorded) return recorded(who, pass);
    if (who.origin == plan::Answer::Origin::variant) return computed(who, pass);
    progress(who.name);
    const std::lock_guard one(program);
    try {
      return external_answer(*who.program, problem_, pass, resources_.limits);
    } catch (const Error& error) {
      fail(who, error.what(), exit_code(error.kind()));
    }
  });
}

std::optional<std::size_t> Context::launched_as(std::size_t index) const {
  const plan::Answer& open = plan_.answers[index];
  if (!open.is_computed() || !hypotheses::has_open_launch(*open.variant, open.options)) return std::nullopt;
  if (open.launched_as) return open.launched_as;
  const auto held_against = [&](const plan::Case& item) {
    return item.answer == index && item.skip.empty() &&
           item.reference.kind == plan::Reference::Kind::answer &&
           plan_.answers[item.reference.answer].origin == plan::Answer::Origin::recorded;
  };
  const auto found = std::ranges::find_if(plan_.cases, held_against);
  return found == plan_.cases.end() ? std::nullopt : std::optional(found->reference.answer);
}

const plan::Answer& Context::with_launch(std::size_t index, kda::Pass pass) {
  const Key key{index, pass};
  if (const auto known = launched_.find(key); known != launched_.end()) return known->second;
  const std::optional<std::size_t> as = launched_as(index);
  if (!as) return plan_.answers[index];
  plan::Answer launched = plan_.answers[index];
  kda::Launch& launch = launched.options.arithmetic.launch;
  // What the passes have in common the forward one tells, as far as it does.
  if (pass == kda::Pass::backward) launch = with_launch(index, kda::Pass::forward).options.arithmetic.launch;
  const Answered answer = recorded(plan_.answers[*as], pass);
  progress(fmt::format("the launch of {}", answer.name));
  const hypotheses::RecordedOutput whole(problem_, pass, answer.tensors, launched.dtype);
  launch = hypotheses::launch_of(*launched.variant, whole.first_heads(), options_of(launched));
  return launched_.emplace(key, std::move(launched)).first->second;
}

void Context::fail(const plan::Answer& who, const std::string& message, int exit_code) {
  failures.push_back({fmt::format("{}: {}", who.name, message), exit_code, plan_.source->target().name});
  throw NoAnswer{judge::Verdict::skipped, message};
}

const Answered& Context::replay(std::size_t index, kda::Pass pass) {
  const plan::Answer& who = plan_.answers[index];
  const Key key{index + replays, pass};
  return kept(key, bytes_of(key), [&] {
    progress(fmt::format("replay of {} {}", who.name, numeric::name_of(who.dtype)));
    plan::Answer on_cpu = who;
    on_cpu.variant = &plan::on_cpu(*who.variant);
    Answered answered = computed(on_cpu, pass);
    answered.name = "replay";
    return answered;
  });
}

Answered Context::computed(const plan::Answer& who, kda::Pass pass) {
  const kda::Variant& variant = *who.variant;
  if (const std::size_t bytes = plan::answer_bytes(plan_.outline, pass, who.dtype); bytes > budget())
    fail(who,
         fmt::format("its answer takes {}; the memory budget leaves {}; hint: --memory-limit raises it",
                     size_text(bytes), size_text(budget())),
         exit_code(ErrorKind::input));
  progress(fmt::format("{} {}{}", who.name, numeric::name_of(who.dtype),
                       pass == kda::Pass::backward ? " backwards" : ""));
  Answered answered = described(who, pass, plan_);
  const Work at_hand(plan::run_seconds(who, plan_.outline, pass), plan::steps_of_run(plan_.outline));
  try {
    std::unique_lock<std::mutex> one;
    if (kda::is_on_gpu(variant)) one = alone_on_gpu();
    answered.tensors = kda::run_pass(pass, variant, problem_, options_of(who));
    allow_for_codes(problem_, answered.tensors);  // where it stores them itself
  } catch (const Error& error) {
    // One that fails takes nobody else's answer with it.
    if (error.kind() == ErrorKind::internal || error.kind() == ErrorKind::usage) throw;
    fail(who, error.what(), exit_code(error.kind()));
  } catch (const std::bad_alloc&) {
    fail(who, "out of memory", exit_code(ErrorKind::environment));
  }
  return answered;
}

Answered Context::recorded(const plan::Answer& who, kda::Pass pass) const {
  Answered answered = described(who, pass, plan_);
  const fixture::ExpectedGroup& group = *plan_.source->expected_named(who.name);
  const plan::Names here = kda::tensors_of(pass, plan_.outline);
  for (const std::string& name : here)
    if (const fixture::DatasetInfo* const info = group.tensor(name))
      answered.tensors.emplace(fixture::leaf(info->path), source_.read(*info));
  if (problem_.pool)
    for (const std::string& name : kda::beside_pool(*problem_.pool))
      if (const fixture::DatasetInfo* const info = group.tensor(name))
        answered.tensors.emplace(name, source_.read(*info));
  if (problem_.pool) answered.tensors = of_ordinary_form(problem_, std::move(answered.tensors));
  return answered;
}

// Computed by who waits for them first.
const std::shared_future<kda::GateStatistics>& Context::gates_to_come(std::size_t chunk_size) {
  std::shared_future<kda::GateStatistics>& found = gates_[chunk_size];
  if (!found.valid())
    found = std::async(std::launch::deferred, [this, chunk_size] {
      return kda::gate_statistics(problem_, chunk_size, resources_.threads);
    });
  return found;
}

const kda::GateStatistics& Context::gates(std::size_t chunk_size) { return gates_to_come(chunk_size).get(); }

std::shared_future<LimitGrounds> Context::grounds(kda::Pass pass, std::size_t chunk_size) {
  return grounds_to_come(pass, chunk_size, resources_.threads);
}

std::shared_future<LimitGrounds> Context::grounds_to_come(kda::Pass pass, std::size_t chunk_size,
                                                          int threads) {
  std::shared_future<LimitGrounds>& found = grounds_[{chunk_size, pass}];
  if (!found.valid())
    found = std::async(std::launch::deferred, [this, pass, chunk_size, threads] {
      return limit_grounds(problem_, pass, chunk_size, threads);
    });
  return found;
}

void Context::begin_ahead(kda::Pass pass, const std::set<std::size_t>& chunk_sizes) {
  std::vector<std::shared_future<kda::GateStatistics>> of_gates;
  for (const std::size_t size : chunk_sizes) of_gates.push_back(gates_to_come(size));
  // They are wanted last: copies and comparisons do not wait for a processor meanwhile.
  const std::shared_future<LimitGrounds> of_limits =
      grounds_to_come(pass, *chunk_sizes.rbegin(), (resources_.threads + 1) / 2);
  if (ahead_.valid()) ahead_.wait();
  try {
    ahead_ = std::async(std::launch::async, [of_gates, of_limits] {
      for (const auto& one : of_gates) one.wait();
      of_limits.wait();
    });
  } catch (const std::system_error&) {
    // No thread is to be had: who wants them computes them.
  }
}

kda::OracleOptions Context::oracle(kda::OraclePrecision precision, const plan::Request& asked,
                                   kda::Pass pass) {
  const auto on_cpu = [this, pass](const std::string& reason) {
    if (left_its_device_.insert(pass).second && resources_.warning)
      resources_.warning(fmt::format("{}: the oracle{} runs on the CPU: {}", plan_.source->name(),
                                     pass == kda::Pass::backward ? " of gradients" : "", reason));
  };
  kda::OracleOptions options{precision, asked.oracle_device_for(problem_.dimensions(), pass)};
  if (asked.oracle_device == plan::OracleDeviceChoice::gpu && options.device == kda::OracleDevice::cpu)
    on_cpu(plan::why_no_gpu_oracle(problem_.dimensions(), pass));
  options.instead = on_cpu;
  return options;
}

Twins::CpuInstead Context::twins_on_cpu_instead() {
  return [this](const std::string& reason) {
    if (!std::exchange(twins_left_their_device_, true) && resources_.warning)
      resources_.warning(fmt::format("{}: twins run on the CPU: {}", plan_.source->name(), reason));
  };
}

bool Context::oracle_left_its_device(std::string_view pass) const {
  return std::ranges::any_of(left_its_device_, [&](kda::Pass left) { return kda::name_of(left) == pass; });
}

Truth Context::truth(kda::Pass pass, const plan::Request& asked, std::size_t chunk_size) {
  std::optional<kda::OracleOptions> options;
  if (const auto precision = plan::precision_of(asked.oracle_or_usual()))
    options = oracle(*precision, asked, pass);
  Truth truth{problem_,
              pass,
              std::move(options),
              chunk_size,
              resources_.threads,
              resources_.limits.memory_budget,
              [this](std::size_t rows) -> const kda::GateStatistics& { return gates(rows); },
              [this, pass](std::size_t rows) { return grounds(pass, rows); }};
  truth.seconds = plan::oracle_seconds(plan_.outline, pass, asked);
  return truth;
}

}  // namespace kda_check::engine

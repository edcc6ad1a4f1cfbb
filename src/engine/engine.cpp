#include "engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/threads/work.hpp"
#include "engine/findings.hpp"
#include "engine/judged.hpp"
#include "kda/gpu/device.hpp"
#include "plan/cost.hpp"
#include "plan/listing.hpp"

namespace kda_check::engine {

namespace {

/// The problems of one source: what one part of the report is about.
struct Unit {
  std::span<const plan::Problem> problems;
  double seconds = 0;
  std::size_t bytes = 0;
  std::size_t cases = 0;
};

std::vector<Unit> units_of(const plan::Plan& plan) {
  std::vector<Unit> units;
  for (std::size_t first = 0, end; first < plan.problems.size(); first = end) {
    for (end = first + 1;
         end < plan.problems.size() && plan.problems[end].source == plan.problems[first].source;)
      ++end;
    Unit& unit =
        units.emplace_back(Unit{std::span<const plan::Problem>(plan.problems).subspan(first, end - first)});
    for (const plan::Problem& problem : unit.problems) {
      unit.seconds += problem.seconds;
      unit.bytes = std::max(unit.bytes, problem.bytes);
      unit.cases += problem.cases.size();
    }
  }
  return units;
}

/// Its verdict is known, or why there is none.
bool is_concluded(const report::CaseResult& item) {
  return item.verdict != judge::Verdict::skipped || !item.reason.empty();
}

bool oracle_is_on_gpu(const plan::Case& item, const plan::Problem& problem) {
  return item.asked->oracle_device_for(problem.outline.dimensions, item.pass) == kda::OracleDevice::gpu;
}

bool needs_gpu(const plan::Plan& plan) {
  return std::ranges::any_of(plan.problems, [](const plan::Problem& problem) {
    return std::ranges::any_of(problem.cases, [&](const plan::Case& item) {
      if (!item.skip.empty()) return false;
      const kda::Variant* const variant = item.answer ? problem.answers[*item.answer].variant : nullptr;
      const bool asks_oracle = item.question != plan::Question::overflow &&
                               item.question != plan::Question::identity &&
                               item.asked->oracle_or_usual() != plan::OracleChoice::none;
      return (variant != nullptr && kda::is_on_gpu(*variant)) ||
             (asks_oracle && oracle_is_on_gpu(item, problem));
    });
  });
}

/// Throws Interrupted after what was concluded until then is in the part.
void run_problem(const plan::Problem& plan, const Resources& resources, report::Document& part,
                 std::vector<std::string>& notes) {
  const Work at_hand(plan.seconds, plan::steps_in(plan.seconds, plan.outline));
  Findings findings;
  for (const plan::Case& item : plan.cases) findings.cases.push_back(begun(item, plan));
  const bool works =
      std::ranges::any_of(plan.cases, [](const plan::Case& item) { return item.skip.empty(); });
  std::optional<Interrupted> ended;
  if (works) {
    Context context(plan, resources);
    for (const std::string& line : fixture::announce_values(context.problem(), resources.threads)) {
      if (resources.warning) resources.warning(fmt::format("{} ({})", line, plan.source->target().path));
      findings.notes.push_back(line);
    }
    std::string failure;
    for (const auto find : {judge_verdicts, judge_laws, compare_stages, identify_outputs, follow_growth,
                            forecast_runs, find_faults, measure_power, capture_answers}) {
      // What goes wrong with one question takes nothing of the others with it.
      try {
        find(context, findings);
      } catch (const Interrupted& by) {
        ended = by;
        break;
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::usage || error.kind() == ErrorKind::internal) throw;
        if (failure.empty()) failure = error.found();
        context.failures.push_back({error.what(), exit_code(error.kind()), plan.source->target().name});
      }
    }
    std::ranges::move(context.failures, std::back_inserter(part.failures));
    leave_out_wrong_references(findings.cases);  // also of a pass whose other failed
    for (report::CaseResult& item : findings.cases)
      if (context.oracle_left_its_device(item.pass) && !item.oracle_device.empty())
        item.oracle_device = "cpu";
    for (report::CaseResult& item : findings.cases)
      if (!ended && !is_concluded(item)) item.reason = failure;
  }
  for (std::size_t i = 0; i < plan.cases.size(); ++i) {
    report::CaseResult& found = findings.cases[i];
    if (plan.cases[i].question != plan::Question::verdict || (ended && !is_concluded(found))) continue;
    if (const auto& written = plan.cases[i].asked->expectation) hold_against(*written, found);
    part.cases.push_back(std::move(found));
  }
  std::ranges::move(findings.sections, std::back_inserter(part.sections));
  for (const std::vector<std::string>* const list : {&std::as_const(findings.notes), &plan.notes})
    for (const std::string& note : *list)
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
  if (ended) throw *ended;
}

/// Of one that a signal ends: what was concluded. The signal is known to all (interrupted()).
report::Document run_unit(const Unit& unit, const Resources& resources) {
  report::Document part;
  const plan::Source& source = *unit.problems.front().source;
  report::ProblemResult described = plan::described(source);
  try {
    for (const plan::Problem& problem : unit.problems) run_problem(problem, resources, part, described.notes);
  } catch (const Interrupted&) {
    // Whoever runs units throws it again when all of them have ended.
  } catch (const Error& error) {
    const bool found_in_file = error.kind() != ErrorKind::internal && error.kind() != ErrorKind::usage;
    const Error placed = found_in_file ? error : error.in(source.target().name);
    part.failures.push_back({placed.what(), exit_code(error.kind()), source.target().name});
  } catch (const std::bad_alloc&) {
    part.failures.push_back(
        {fmt::format("out of memory ({}); hint: fewer --threads, a smaller --memory-limit",
                     source.target().name),
         exit_code(ErrorKind::environment), source.target().name});
  } catch (const std::exception& error) {
    part.failures.push_back(
        {fmt::format("a bug in kda-check: {} ({}); hint: please report it with the command line",
                     error.what(), source.target().name),
         exit_code(ErrorKind::internal), source.target().name});
  }
  part.problems.push_back(std::move(described));
  return part;
}

bool says_something(const report::Document& part) {
  return !part.cases.empty() || !part.sections.empty() || !part.failures.empty() ||
         !part.problems.front().notes.empty();
}

/// Threads that one of so many units is worth: each costs to share with, and other processes may want it. The
/// first few are worth it sooner, where no other unit wants them and there is memory for each.
int threads_for(const Unit& unit, std::size_t units, const Resources& resources) {
  const auto worth = [&](double seconds, double most) {
    return std::clamp(unit.seconds / seconds, 1.0, most);
  };
  constexpr double most_of_few = 4;
  const bool has_room = unit.bytes <= resources.limits.memory_budget / 16;
  const double all = resources.threads, of_each = all / static_cast<double>(units),
               few = has_room ? std::clamp(of_each, 1.0, most_of_few) : 1;
  return static_cast<int>(std::max(worth(0.05, all), worth(0.001, few)));
}

/// Units at work, each with its share of threads and memory; what they give comes out in their order.
class Schedule {
 public:
  Schedule(const std::vector<Unit>& units, const Execution& execution, const Finished& finished)
      : units_(units),
        execution_(execution),
        finished_(finished),
        free_threads_(execution.resources.threads) {
    for (const Unit& unit : units) total_.of_cases += unit.cases;
  }

  void run() {
    {
      std::vector<std::jthread> workers;
      const auto wanted = static_cast<int>(
          std::min<std::size_t>(static_cast<std::size_t>(execution_.resources.threads), units_.size()));
      try {
        for (int worker = 1; worker < wanted; ++worker)
          workers.emplace_back([this, whole = Work::at_hand()] {
            const Work::Here here(whole);
            work();
          });
      } catch (const std::system_error&) {
        // No more threads to be had: those there are do the work.
      }
      work();
    }
    // What is done is told, also behind a gap that an interruption left.
    for (auto& [index, part] : waiting_) finished_(std::move(part));
    if (failure_) std::rethrow_exception(failure_);
    check_interruption();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      if (next_ == units_.size() || failure_ || enough_ || interrupted()) return;
      const std::size_t mine = next_++;
      const Unit& unit = units_[mine];
      const int threads = threads_for(unit, units_.size(), execution_.resources);
      // In turn: a large one is not overtaken for ever by small ones.
      const auto fits = [&] {
        return failure_ || interrupted() ||
               (mine == started_ && threads <= free_threads_ &&
                (running_ == 0 || bytes_ + unit.bytes <= execution_.resources.limits.memory_budget));
      };
      changed_.wait(lock, fits);
      if (failure_ || interrupted()) return;
      ++started_, ++running_, free_threads_ -= threads, bytes_ += unit.bytes;
      changed_.notify_all();
      lock.unlock();
      run_one(mine, unit, threads);
      lock.lock();
      --running_, free_threads_ += threads, bytes_ -= unit.bytes;
      changed_.notify_all();
    }
  }

  void run_one(std::size_t index, const Unit& unit, int threads) {
    try {
      const Work at_hand(unit.seconds, 0);
      Resources resources = execution_.resources;
      resources.threads = resources.limits.threads = threads;
      const auto locked = [this](const std::function<void(const std::string&)>& tell) {
        return [this, &tell](const std::string& text) {
          const std::lock_guard lock(telling_);
          tell(text);
        };
      };
      if (execution_.resources.warning) resources.warning = locked(execution_.resources.warning);
      if (execution_.resources.progress) resources.progress = locked(execution_.resources.progress);
      report::Document part = run_unit(unit, resources);
      const std::lock_guard lock(telling_);
      if (!interrupted()) {
        waiting_.emplace(index, std::move(part));
        tell();
      } else if (says_something(part)) {  // told in the end: it may be a piece
        waiting_.emplace(index, std::move(part));
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      changed_.notify_all();
    }
  }

  /// Everything that is next in the order of the plan.
  void tell() {
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == told_;
         first = waiting_.begin()) {
      total_.cases += units_[told_].cases;
      finished_(std::move(first->second));
      if (execution_.done) execution_.done(total_);
      if (execution_.enough && execution_.enough()) enough_ = true;
      waiting_.erase(first);
      ++told_;
    }
  }

  const std::vector<Unit>& units_;
  const Execution& execution_;
  const Finished& finished_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0, started_ = 0;
  int running_ = 0, free_threads_;
  std::size_t bytes_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> enough_{false};

  std::mutex telling_;
  std::map<std::size_t, report::Document> waiting_;
  std::size_t told_ = 0;
  Done total_;
};

}  // namespace

std::string with_remark(std::string arithmetic, const plan::Problem& problem) {
  const std::string remark = problem.remark();
  return arithmetic + (arithmetic.empty() || remark.empty() ? "" : " ") + remark;
}

report::CaseResult begun(const plan::Case& item, const plan::Problem& problem) {
  report::CaseResult result;
  if (item.answer) result = case_about(described(problem.answers[*item.answer], item.pass, problem), {});
  result.arithmetic = with_remark(std::move(result.arithmetic), problem);
  result.number = item.number;
  result.place = item.asked->place;
  result.fixture = problem.source->name();
  result.path = problem.source->target().name;
  result.variant = item.who;
  if (!item.answer) result.role = report::Role::recorded;
  result.pass = kda::name_of(item.pass);
  result.against = item.reference.name;
  result.oracle = plan::name_of(item.asked->oracle_or_usual());
  if (item.asked->oracle_or_usual() != plan::OracleChoice::none)
    result.oracle_device = oracle_is_on_gpu(item, problem) ? kda::gpu_device_name() : "cpu";
  result.verdict = judge::Verdict::skipped;
  result.reason = item.skip;
  result.repro = item.repro;
  return result;
}

void execute(const plan::Plan& plan, const Execution& execution, const Finished& finished) {
  const std::vector<Unit> units = units_of(plan);
  std::future<void> ready;  // while the first file is read
  try {
    if (needs_gpu(plan)) ready = std::async(std::launch::async, kda::make_gpu_ready);
  } catch (const std::system_error&) {
    // No thread is to be had: whoever needs it first waits.
  }
  if (!units.empty()) Schedule(units, execution, finished).run();
}

}  // namespace kda_check::engine

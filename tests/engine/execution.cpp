// How a plan is run: results depend on neither threads nor memory, an answer that fails takes nobody else's
// with it, and events come in the order of the plan.
#include <atomic>
#include <csignal>
#include <fstream>
#include <new>
#include <set>
#include <thread>

#include "base/interruption.hpp"
#include "base/threads/work.hpp"
#include "plan/cost.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"
#include "support/temporary_folder.hpp"

namespace execution_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::DType;
using plan::Names;
using report::exit_code;
using test::case_of;

namespace {

std::string committed(const char* name) { return test::case_fixtures() + "/" + name + ".h5"; }

/// `recurrent` under other names, counted, and some that fail.
std::atomic<int> runs;

kda::Answer counted(const kda::Problem& problem, const kda::RunOptions& options) {
  ++runs;
  return kda::run_recurrent(problem, options);
}

kda::Variant like_recurrent(const char* name, decltype(kda::Variant::run) run) {
  kda::Variant row = kda::variant_named("recurrent");
  row.name = name, row.run = run, row.run_backward = nullptr;
  return row;
}

/// A request that names every row of the registry.
plan::Request request_for(std::vector<std::string> targets, const std::vector<kda::Variant>& registry) {
  plan::Request request = test::request_for(std::move(targets));
  request.registry = registry;
  return request;
}

engine::Resources with_budget(std::size_t bytes, int threads = 1) {
  engine::Resources resources = test::on_threads(threads);
  resources.limits.memory_budget = bytes;
  return resources;
}

/// A file whose answers are as large as its inputs or larger, with a loss and a recorded answer: a right one,
/// or one whose o is wrong.
class Roomy {
 public:
  explicit Roomy(bool is_wrong = false)
      : file_(problem_of(), is_wrong ? &wrong_answer() : &answer_of(), "roomy") {}
  const std::string& path() const { return file_.path; }
  std::size_t input_bytes() const { return plan::Source::look({file_.path, file_.path, false}, {}).bytes(); }
  static std::size_t answer_bytes(DType dtype, kda::Pass pass = kda::Pass::forward) {
    return plan::answer_bytes(problem_of(), pass, dtype);
  }

 private:
  static const kda::Problem& problem_of() {
    static const kda::Problem problem = [] {
      test::ProblemSpec spec;
      spec.T = 200, spec.HV = 8, spec.K = 4, spec.V = 64;
      return test::with_loss(test::make_problem(spec));
    }();
    return problem;
  }
  static const kda::Answer& answer_of() {
    static const kda::Answer answer = test::run(problem_of(), "recurrent", DType::fp32);
    return answer;
  }
  static const kda::Answer& wrong_answer() {
    static const kda::Answer answer = [] {
      kda::Answer wrong = test::run(problem_of(), "recurrent", DType::fp32);
      wrong.o.set(11, wrong.o.value(11) * 1.5 + 1);
      return wrong;
    }();
    return answer;
  }
  test::TemporaryFixture file_;
};

}  // namespace

TEST_CASE("results do not depend on the number of threads", "[engine][threads]") {
  plan::Request request = test::request_for({committed("fla_bf16_prefill"), committed("fla_fp32_varlen"),
                                             committed("fla_fp32_small_backward"), "control:T=70,H=1",
                                             "bwd_tail:T=40,H=1,K=16,V=8", "control:T=3,H=1"});
  request.selection.dtypes = Names{"fixture", "bf16"};
  request.stages = true;
  request.invariants = Names{"repeat", "split"};
  const auto text = [&](int threads) {
    return report::write_json(test::ran(request, test::on_threads(threads)), {});
  };
  const std::string one = text(1);
  for (const int threads : {2, 5, 1}) CHECK(one == text(threads));
}

TEST_CASE("results do not depend on the memory there is, as long as it is enough", "[engine][memory]") {
  const Roomy file;
  plan::Request request = test::request_for({file.path()});
  request.selection.variants = Names{"naive", "recurrent", "chunk"};
  request.selection.dtypes = Names{"fp32", "fp64"};
  request.selection.pass = kda::Pass::forward;
  request.test = false;  // they ask for more
  const report::Document roomy = test::ran(request);
  REQUIRE(roomy.failures.empty());
  REQUIRE(roomy.cases.size() == 1 + 2 * 3 * 2);
  // Beside the inputs there is room for two answers in fp64, and not for the seven that are compared.
  const std::size_t budget = file.input_bytes() + 2 * Roomy::answer_bytes(DType::fp64) + 1;
  REQUIRE(budget > 4 * Roomy::answer_bytes(DType::fp64) / 2);
  for (const int threads : {1, 5}) {
    const report::Document tight = test::ran(request, with_budget(budget, threads));
    CHECK(report::write_json(tight, {}) == report::write_json(roomy, {}));
  }
}

TEST_CASE("an answer that alone is too large is skipped with what it takes, and smaller ones are judged",
          "[engine][memory]") {
  const Roomy file;
  plan::Request request = test::request_for({file.path()});
  request.selection.variants = Names{"recurrent", "chunk"};
  request.selection.dtypes = Names{"fp32", "fp64"};
  request.selection.against = Names{"oracle"}, request.selection.recorded = Names{};
  request.selection.pass = kda::Pass::forward;
  request.test = false;
  const std::size_t budget = file.input_bytes() + Roomy::answer_bytes(DType::fp64) - 1;
  const report::Document document = test::ran(request, with_budget(budget));
  for (const char* const variant : {"recurrent", "chunk"}) {
    CHECK(case_of(document, variant, "oracle", "fp32").verdict == Verdict::pass);
    const report::CaseResult& large = case_of(document, variant, "oracle", "fp64");
    CHECK(large.verdict == Verdict::skipped);
    CHECK_THAT(large.reason, ContainsSubstring("its answer takes ") &&
                                 ContainsSubstring("the memory budget leaves ") &&
                                 ContainsSubstring("--memory-limit raises it"));
  }
  REQUIRE(document.failures.size() == 2);
  CHECK_THAT(document.failures[0].message, ContainsSubstring("recurrent: its answer takes "));
  CHECK(document.failures[0].path == file.path());
  CHECK(exit_code(document) == 3);
}

TEST_CASE("gradients whose truth does not fit take nothing from the forward pass", "[engine][memory]") {
  const Roomy file;
  plan::Request request = test::request_for({file.path()});
  request.selection.variants = Names{"recurrent"};
  request.selection.against = Names{"oracle"}, request.selection.recorded = Names{};
  request.test = false;
  const std::size_t budget = file.input_bytes() + Roomy::answer_bytes(DType::fp32, kda::Pass::backward);
  const report::Document document = test::ran(request, with_budget(budget));
  CHECK(case_of(document, "recurrent", "oracle").verdict == Verdict::pass);
  const report::CaseResult& backward = case_of(document, "recurrent", "oracle", {}, "backward");
  CHECK(backward.verdict == Verdict::skipped);
  CHECK_FALSE(backward.reason.empty());
  REQUIRE(document.failures.size() == 1);
  CHECK_THAT(document.failures[0].message, ContainsSubstring("--memory-limit"));
  CHECK(exit_code(document) == 3);
}

TEST_CASE("a wrong recorded answer is one failure, too, where gradients do not fit", "[engine][memory]") {
  const Roomy file(true);
  plan::Request request = test::request_for({file.path()});
  request.selection.variants = Names{"recurrent"};
  request.test = false;
  const std::size_t budget = file.input_bytes() + Roomy::answer_bytes(DType::fp32, kda::Pass::backward);
  const report::Document document = test::ran(request, with_budget(budget));
  REQUIRE(document.failures.size() == 1);
  CHECK(case_of(document, "somebody", "oracle").verdict == Verdict::fail);
  CHECK(document.count(Verdict::fail) == 1);
  CHECK(test::tensor_of(case_of(document, "recurrent", "somebody"), "o").reason ==
        "not compared: somebody fails");
}

TEST_CASE("a budget below the inputs refuses the file when it is looked at", "[engine][memory]") {
  const Roomy file;
  const report::Document document = test::ran(test::request_for({file.path()}), with_budget(1000));
  CHECK(document.cases.empty());
  REQUIRE(document.failures.size() == 1);
  CHECK(exit_code(document) == 3);
}

TEST_CASE("an answer that fails is one failure and skipped cases, while the others go on",
          "[engine][failures]") {
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const test::TemporaryFixture file(problem, &answer);
  const std::vector<kda::Variant> registry = {
      like_recurrent("first", counted),
      like_recurrent("no_device",
                     [](const kda::Problem&, const kda::RunOptions&) -> kda::Answer {
                       throw Error(ErrorKind::environment, "the device went away");
                     }),
      like_recurrent(
          "no_memory",
          [](const kda::Problem&, const kda::RunOptions&) -> kda::Answer { throw std::bad_alloc(); }),
      like_recurrent("bad_input",
                     [](const kda::Problem&, const kda::RunOptions&) -> kda::Answer {
                       throw Error(ErrorKind::input, "no such layout");
                     }),
      like_recurrent("last", counted)};
  plan::Request request = request_for({file.path, "control:T=4,H=1"}, registry);
  request.invariants = Names{"repeat"};
  const report::Document document = test::ran(request);
  for (const char* const variant : {"first", "last"})
    for (const char* const against : {"oracle", "somebody", "invariant:repeat"})
      CHECK(case_of(document, variant, against).verdict == Verdict::pass);
  const std::pair<const char*, const char*> failing[] = {
      {"no_device", "the device went away"}, {"no_memory", "out of memory"}, {"bad_input", "no such layout"}};
  for (const auto& [variant, reason] : failing)
    for (const char* const against : {"oracle", "somebody", "invariant:repeat"}) {
      CHECK(case_of(document, variant, against).verdict == Verdict::skipped);
      CHECK(case_of(document, variant, against).reason == reason);
    }
  // One for each answer and target, however many cases it has.
  REQUIRE(document.failures.size() == 2 * 3);
  CHECK(document.failures[0].message == "no_device: the device went away");
  CHECK(document.failures[0].exit_code == 4);
  CHECK(document.failures[0].path == file.path);
  CHECK(document.failures[1].message == "no_memory: out of memory");
  CHECK(document.failures[1].exit_code == 4);
  CHECK(document.failures[2].exit_code == 3);
  CHECK(document.failures[3].path == "control:T=4,H=1");
  CHECK(exit_code(document) == 4);
}

TEST_CASE("a bug in a variant is the exit code of the run, and takes no other problem with it",
          "[engine][failures]") {
  const std::vector<kda::Variant> registry = {
      like_recurrent("buggy", [](const kda::Problem& problem, const kda::RunOptions& options) -> kda::Answer {
        if (problem.dimensions().T == 4) throw Error(ErrorKind::internal, "this cannot be");
        return kda::run_recurrent(problem, options);
      })};
  for (const int threads : {1, 3}) {
    const report::Document document =
        test::ran(request_for({"control:T=4,H=1", "control:T=5,H=1"}, registry), test::on_threads(threads));
    REQUIRE(document.failures.size() == 1);
    CHECK(document.failures[0].message == "this cannot be (control:T=4,H=1)");
    CHECK(exit_code(document) == 70);
    REQUIRE(document.cases.size() == 1);
    CHECK(document.cases[0].path == "control:T=5,H=1");
    CHECK(document.cases[0].verdict == Verdict::pass);
  }
}

TEST_CASE("two lines of a suite that share a problem share its answers", "[engine][contexts]") {
  const std::vector<kda::Variant> registry = {like_recurrent("counted", counted)};
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const test::TemporaryFixture file(problem, &answer);
  const test::TemporaryFolder folder;
  std::ofstream(folder / "mine.txt") << "oracle\ngroup\nfp64\nbf16\nseparate\n";
  const auto parse_line = [&](const plan::Words& words) {
    plan::Request line = test::request_for({file.path});
    if (words[0] == "oracle") line.selection.against = Names{"oracle"};
    if (words[0] == "group")
      line.selection.against = Names{"somebody"}, line.judging.limits = test::limits({"max_ulp=9"});
    if (words[0] == "fp64" || words[0] == "bf16") line.selection.dtypes = Names{words[0]};
    if (words[0] == "separate") line.arithmetic = {"contraction=separate"};
    return line;
  };
  plan::Request command = request_for({"@" + (folder / "mine.txt")}, registry);
  runs = 0;
  const report::Document document = test::ran(plan::planned(command, {{}, {}, parse_line}));
  // As stored in fp32, once for two lines; in fp64; rounded to bf16; in another arithmetic.
  CHECK(runs == 4);
  CHECK(document.problems.size() == 1);
  std::multiset<std::string> places;
  for (const report::CaseResult& item : document.cases)
    if (item.variant == "counted")
      places.insert(item.place.substr(item.place.rfind(':') + 1) + " " + item.against);
  CHECK(places == std::multiset<std::string>{"1 oracle", "2 somebody", "3 oracle", "3 somebody", "4 oracle",
                                             "4 somebody", "5 oracle", "5 somebody"});
}

TEST_CASE("events come in the order of the plan, whoever is done first", "[engine][events]") {
  // The first is the slowest by far.
  std::vector<std::string> targets{"control:T=600,H=2"};
  for (int T = 1; T <= 12; ++T) targets.push_back("control:H=1,K=8,V=8,T=" + std::to_string(T));
  plan::Request request = test::request_for(targets);
  request.selection.variants = Names{"naive"};
  const plan::Plan plan = test::planned(request);
  for (const int threads : {1, 2, 5}) {
    std::vector<std::string> told;
    std::vector<engine::Done> done;
    engine::Execution execution;
    execution.resources = test::on_threads(threads);
    execution.done = [&](const engine::Done& now) { done.push_back(now); };
    engine::execute(plan, execution, {[&](report::Document part) {
                      REQUIRE(part.problems.size() == 1);
                      told.push_back(part.problems[0].path);
                    }});
    CHECK(told == targets);
    REQUIRE(done.size() == targets.size());
    for (std::size_t i = 0; i < done.size(); ++i) {
      CHECK(done[i].cases == i + 1);
      CHECK(done[i].of_cases == plan.cases);
    }
  }
}

TEST_CASE("of one large comparison it is known how much is done while it runs", "[engine][events]") {
  plan::Request request = test::request_for({"control:T=300,H=2,loss=1"});
  request.selection.variants = Names{"naive", "chunk"};
  const plan::Plan plan = test::planned(request);
  for (const int threads : {1, 3}) {
    const Work whole(plan.seconds());
    std::vector<double> shares;
    engine::Execution execution;
    execution.resources = test::on_threads(threads);
    execution.resources.progress = [&](const std::string&) {
      shares.push_back(whole.done() / plan.seconds());
    };
    engine::execute(plan, execution, {[](report::Document) {}});
    REQUIRE(shares.size() > 4);  // two answers and what is compared, forwards and backwards
    CHECK(shares.front() == 0);
    CHECK(std::ranges::is_sorted(shares));
    CHECK(std::ranges::adjacent_find(shares) == shares.end());
    CHECK(shares.back() < 1);
    CHECK(whole.done() == Approx(plan.seconds()));
  }
}

TEST_CASE("nothing more is begun once there is enough", "[engine][events]") {
  static std::atomic<bool> was_enough;
  static std::atomic<int> late;
  const std::vector<kda::Variant> registry = {
      like_recurrent("counted", [](const kda::Problem& problem, const kda::RunOptions& options) {
        if (was_enough) ++late;
        return counted(problem, options);
      })};
  std::vector<std::string> targets;
  for (int T = 1; T <= 20; ++T) targets.push_back("control:H=1,K=8,V=8,T=" + std::to_string(T));
  const plan::Plan plan = test::planned(request_for(targets, registry));
  for (const int threads : {1, 2}) {
    runs = 0, late = 0, was_enough = false;
    int told = 0;
    engine::Execution execution;
    execution.resources = test::on_threads(threads);
    execution.enough = [&] {
      was_enough = was_enough || told >= 3;
      return was_enough.load();
    };
    engine::execute(plan, execution, {[&](report::Document) { ++told; }});
    CHECK(told >= 3);
    CHECK(runs == told);
    CHECK(late <= threads);  // begun before, though they run after
    if (threads == 1) CHECK(told == 3);
  }
}

TEST_CASE("cases that were concluded before a signal are told, also of the source that it breaks off",
          "[engine][events]") {
  const std::vector<kda::Variant> registry = {
      like_recurrent("wrong",
                     [](const kda::Problem& problem, const kda::RunOptions& options) {
                       kda::Answer answer = kda::run_recurrent(problem, options);
                       answer.o.set(0, 1000);
                       return answer;
                     }),
      like_recurrent("ending", [](const kda::Problem& problem, const kda::RunOptions& options) {
        std::raise(SIGTERM);
        return kda::run_recurrent(problem, options);
      })};
  // There is room for one answer at a time: each is compared before the next is computed.
  const Roomy file;
  plan::Request request = request_for({file.path()}, registry);
  request.selection.dtypes = Names{"fp32"};
  request.selection.against = Names{"oracle"}, request.selection.recorded = Names{};
  request.selection.pass = kda::Pass::forward;
  request.test = false;
  const std::size_t budget = file.input_bytes() + Roomy::answer_bytes(DType::fp32) + 1;
  test::Child child([&](const std::function<void()>&) {
    prepare_signals();
    report::Document document;
    try {
      engine::execute(test::planned(request), {with_budget(budget)},
                      {[&](report::Document part) { document.add(std::move(part)); }});
    } catch (const Interrupted&) {
      if (document.problems.size() != 1 || document.cases.size() != 1) return 90;
      const report::CaseResult& item = document.cases[0];
      return item.variant == "wrong" && item.verdict == Verdict::fail && !item.tensors.empty() ? 0 : 91;
    }
    return 92;
  });
  CHECK(child.exit_status() == 0);
}

TEST_CASE("what is done is told before a signal ends the run", "[engine][events]") {
  std::vector<std::string> targets;
  for (int T = 1; T <= 6; ++T) targets.push_back("control:H=1,K=8,V=8,T=" + std::to_string(T));
  test::Child child([&](const std::function<void()>&) {
    prepare_signals();
    // The third asks for the end of the process that it runs in.
    const std::vector<kda::Variant> registry = {
        like_recurrent("ending", [](const kda::Problem& problem, const kda::RunOptions& options) {
          if (problem.dimensions().T == 3) std::raise(SIGTERM);
          return kda::run_recurrent(problem, options);
        })};
    int told = 0;
    try {
      engine::execute(test::planned(request_for(targets, registry)), {test::on_threads(1)},
                      {[&](report::Document part) { told += part.problems.size() == 1; }});
    } catch (const Interrupted& by) {
      return by.signal == SIGTERM ? told : 90;
    }
    return 91;
  });
  const int told = child.exit_status();
  CHECK(told >= 2);
  CHECK(told <= 3);
}

}  // namespace execution_tests

#include "engine/diff.hpp"

#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>

#include "base/interruption.hpp"
#include "judge/measures/comparison.hpp"
#include "judge/measures/metrics.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/child.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"
#include "support/temporary_folder.hpp"

namespace diff_tests {

using namespace kda_check;
using engine::DiffRequest;
using judge::Verdict;
using numeric::DType;
using report::exit_code;
using test::TemporaryFixture;

namespace {

std::string committed(const char* name) { return test::case_fixtures() + "/" + name + ".h5"; }

DiffRequest request_for(const std::string& got, const std::string& reference, int threads = 1) {
  DiffRequest request;
  request.got = got, request.reference = reference, request.threads = threads;
  return request;
}

report::Document diff(const DiffRequest& request,
                      const std::function<void(const std::string&)>& progress = {}) {
  report::Document document;
  engine::diff(request, document, {}, progress);
  return document;
}

/// Of two files whose o differs.
report::TensorResult failing_o(const DiffRequest& request) {
  const report::Document document = diff(request);
  CHECK(exit_code(document) == 1);
  const report::TensorResult& o = test::tensor_of(document.cases[0], "expected/somebody/o");
  CHECK(o.verdict == Verdict::fail);
  return o;
}

}  // namespace

TEST_CASE("diff finds one element altered by one ULP, with its coordinates", "[engine][diff]") {
  test::ProblemSpec spec;
  spec.B = 2, spec.T = 50, spec.H = 2, spec.HV = 4;
  const kda::Problem problem = test::make_problem(spec);
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const TemporaryFixture before(problem, &answer, "before");
  const std::size_t at = ((1 * 50 + 37) * 4 + 2) * spec.V + 3;
  auto elements = answer.o.elements<float>();
  elements[at] = std::nextafterf(elements[at], HUGE_VALF);
  const TemporaryFixture after(problem, &answer, "after");
  const report::Document document = diff(request_for(after.path, before.path, 2));
  CHECK(exit_code(document) == 1);
  std::size_t failed = 0;
  for (const report::TensorResult& tensor : document.cases[0].tensors) {
    if (tensor.verdict == Verdict::pass) continue;
    ++failed;
    CHECK(tensor.name == "expected/somebody/o");
    CHECK(tensor.worst->place == "expected/somebody/o[b=1 t=37 h=2 v=3]");
    CHECK(tensor.reason == "max_ulp 1 > 0; differing_bits 1 > 0");
  }
  CHECK(failed == 1);
}

TEST_CASE("diff of equal files passes, of a file with itself is inconclusive", "[engine][diff]") {
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const TemporaryFixture a(problem, &answer, "a"), b(problem, &answer, "b");
  CHECK(exit_code(diff(request_for(a.path, b.path))) == 0);
  const report::Document itself = diff(request_for(a.path, a.path));
  CHECK(exit_code(itself) == 1);
  CHECK_THAT(itself.cases[0].reason, ContainsSubstring("compared with itself"));
}

TEST_CASE("a zero of the other sign is a difference, unless a limit of the user's says what counts",
          "[engine][diff]") {
  const kda::Problem problem = test::make_problem({});
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  answer.o.set(5, 0.0);
  const TemporaryFixture before(problem, &answer, "plus");
  answer.o.set(5, -0.0);
  const TemporaryFixture after(problem, &answer, "minus");
  DiffRequest request = request_for(after.path, before.path);
  const report::TensorResult o = failing_o(request);
  CHECK(o.reason == "differing_bits 1 > 0");
  CHECK(test::metric_of(o, "max_ulp") == 0);
  request.judging.limits = test::limits({"max_ulp=exact"});
  CHECK(exit_code(diff(request)) == 0);
}

TEST_CASE("an answer of another element type is a difference, unless limits of the user's decide",
          "[engine][diff]") {
  const kda::Problem problem = test::make_problem({});
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const TemporaryFixture before(problem, &answer, "wide");
  answer.o = answer.o.converted_to(DType::fp16);
  const TemporaryFixture after(problem, &answer, "narrow");
  DiffRequest request = request_for(after.path, before.path);
  CHECK(failing_o(request).reason == "element type is fp16 but was fp32");
  request.judging.limits = test::limits({"max_ulp=0"});
  CHECK(exit_code(diff(request)) == 0);
  request.judging.limits = test::limits({"rms_ratio=1.3e-4"});
  CHECK_THAT(diff(request).cases[0].reason, ContainsSubstring("rms_ratio") && ContainsSubstring("was fp32"));
}

TEST_CASE("a NaN of other bits is a difference, one of the same bits decides nothing", "[engine][diff]") {
  const kda::Problem problem = test::make_problem({});
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  auto elements = answer.o.elements<float>();
  elements[3] = std::bit_cast<float>(0x7fc00000u);
  const TemporaryFixture before(problem, &answer, "before"), same(problem, &answer, "same");
  const report::Document equal = diff(request_for(same.path, before.path));
  CHECK(test::tensor_of(equal.cases[0], "expected/somebody/o").verdict == Verdict::inconclusive);
  elements[3] = std::bit_cast<float>(0x7fc00001u);
  const TemporaryFixture after(problem, &answer, "after");
  const report::TensorResult o = failing_o(request_for(after.path, before.path));
  CHECK(o.reason == "differing_bits 1 > 0");
  CHECK(o.worst->place == "expected/somebody/o[b=0 t=0 h=0 v=3]");
}

TEST_CASE("diff compares two groups of one file under the limits asked for", "[engine][diff]") {
  const std::string path = committed("fla_fp32_small");
  DiffRequest request = request_for(path + ":fla_chunk", path + ":torch_fp64");
  request.judging.limits = test::limits({"rms_ratio=5e-3"});
  CHECK(exit_code(diff(request)) == 0);
  request.judging.limits = test::limits({"rms_ratio=5e-4"});
  CHECK(exit_code(diff(request)) == 1);
  request.got = path + ":fla_chnk";
  CHECK_THAT(test::refusal([&] { diff(request); }), ContainsSubstring("did you mean 'fla_chunk'?"));
}

TEST_CASE("a tensor only one side has is inconclusive", "[engine][diff]") {
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const TemporaryFixture with(problem, &answer, "with"), without(problem, nullptr, "without");
  for (const auto& [got, reference] : {std::pair{with.path, without.path}, {without.path, with.path}}) {
    const report::Document document = diff(request_for(got, reference));
    CHECK(exit_code(document) == 1);
    CHECK_THAT(document.cases[0].reason, ContainsSubstring("only in " + with.path));
  }
}

TEST_CASE("diff notices options and attributes of answers that differ", "[engine][diff]") {
  kda::Problem problem = test::make_problem({});
  const TemporaryFixture a(problem, nullptr, "a");
  problem.options.scale = 0.7;
  const TemporaryFixture b(problem, nullptr, "b");
  const report::Document document = diff(request_for(a.path, b.path));
  CHECK(document.cases[0].verdict == Verdict::fail);
  CHECK_THAT(document.cases[0].reason, ContainsSubstring("scale"));

  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const auto write = [&](const std::string& path, numeric::ComputeFormat compute) {
    fixture::WriteRequest request;
    request.name = "t", request.problem = &problem;
    request.expected.push_back({"somebody", "", "", compute, {&answer.o, &answer.final_state}, {}});
    fixture::write_fixture(path, request);
  };
  write(a.path, numeric::ComputeFormat::fp32);
  write(b.path, numeric::ComputeFormat::tf32);
  const report::Document precision = diff(request_for(a.path, b.path));
  CHECK(exit_code(precision) == 1);
  CHECK_THAT(precision.cases[0].reason, ContainsSubstring("expected/somebody: compute differs: fp32 / tf32"));
}

TEST_CASE("two folders are compared file by file, and a file without a partner fails", "[engine][diff]") {
  const test::TemporaryFolder before, after;
  const auto copy = [](const test::TemporaryFolder& to, const std::string& name, const char* from) {
    std::filesystem::create_directories(std::filesystem::path(to / name).parent_path());
    std::filesystem::copy_file(committed(from), to / name);
  };
  for (const test::TemporaryFolder* const folder : {&before, &after}) {
    copy(*folder, "one.h5", "fla_fp32_small");
    copy(*folder, "deeper/two.h5", "fla_fp16_c32");
  }
  const report::Document same = diff(request_for(after.path(), before.path()));
  CHECK(exit_code(same) == 0);
  REQUIRE(same.cases.size() == 2);
  CHECK(same.cases[0].path == after / "deeper/two.h5");
  CHECK(same.cases[0].against == before / "deeper/two.h5");

  copy(before, "gone.h5", "fla_fp32_small");
  copy(after, "new.h5", "fla_fp32_small");
  std::filesystem::resize_file(after / "one.h5", 100);
  const report::Document other = diff(request_for(after.path(), before.path()));
  CHECK(exit_code(other) == 3);  // what cannot be read is more than a difference
  REQUIRE(other.failures.size() == 1);
  CHECK(other.failures[0].path == after / "one.h5");
  std::map<std::string, std::string> reasons;
  for (const report::CaseResult& item : other.cases)
    if (item.verdict == Verdict::fail) reasons[item.path] = item.reason;
  CHECK(reasons == std::map<std::string, std::string>{{before / "gone.h5", "only in " + before.path()},
                                                      {after / "new.h5", "only in " + after.path()}});
  CHECK_THAT(test::refusal([&] { diff(request_for(after.path(), before / "gone.h5")); }),
             ContainsSubstring("2 one of the two is a folder and the other is not"));
}

TEST_CASE("diff refuses limits it cannot compute and decides nothing without any", "[engine][diff]") {
  const std::string path = committed("fla_fp32_small");
  DiffRequest request = request_for(path + ":fla_chunk", path + ":torch_fp64");
  request.judging.limits = test::limits({"scaled_ulp=8"});
  CHECK_THAT(test::refusal([&] { diff(request); }), ContainsSubstring("2 --limit scaled_ulp"));
  request.judging.limits = test::limits({"max_ulp=none"});
  CHECK(diff(request).cases[0].verdict == Verdict::inconclusive);
  request.judging.limits = test::limits({"max_ulp=0"});
  CHECK(diff(request).cases[0].verdict == Verdict::fail);
}

namespace {

/// What judge::Comparison says of two tensors held whole.
std::vector<std::pair<std::string, double>> metrics_of_whole(const tensor::Tensor& got,
                                                             const tensor::Tensor& expected, bool v_first) {
  judge::Comparison comparison(got.name(), got, v_first, false, {});
  comparison.add_all(expected);
  const judge::Measures measures = comparison.finish();
  std::vector<std::pair<std::string, double>> list;
  for (const judge::Metric& metric : judge::metrics())
    if (metric.needs == judge::Needs::nothing) list.emplace_back(metric.name, metric.value(measures));
  return list;
}

}  // namespace

TEST_CASE("diff in blocks says of all captures what comparing whole tensors says", "[engine][diff]") {
  std::size_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::case_fixtures())) {
    if (entry.path().extension() != ".h5") continue;
    const fixture::Fixture file = fixture::Fixture::open(entry.path().string());
    for (std::size_t i = 0; i + 1 < file.expected().size(); ++i) {
      const fixture::ExpectedGroup &a = file.expected()[i], &b = file.expected()[i + 1];
      for (const auto& [budget, threads] :
           {std::pair<std::size_t, int>{std::size_t{1} << 30, 2}, {1000, 1}}) {
        DiffRequest request = request_for(file.path() + ":" + a.name, file.path() + ":" + b.name, threads);
        request.limits.memory_budget = budget;
        const report::Document document = diff(request);
        for (const report::TensorResult& tensor : document.cases.at(0).tensors) {
          INFO(file.name() << ' ' << a.name << ' ' << b.name << ' ' << tensor.name);
          const fixture::DatasetInfo *const got = a.tensor(tensor.name), *const expected =
                                                                             b.tensor(tensor.name);
          if (got == nullptr || expected == nullptr) continue;
          CHECK(tensor.metrics ==
                metrics_of_whole(file.read(*got), file.read(*expected), file.options().state_v_first));
          ++compared;
        }
      }
    }
  }
  CHECK(compared > 20);
}

TEST_CASE("a file cut off while diff reads it is bad input", "[engine][diff]") {
  test::ProblemSpec spec;
  spec.T = 500;
  const kda::Problem problem = test::make_problem(spec);
  const TemporaryFixture a(problem, nullptr, "a"), b(problem, nullptr, "b");
  const report::Document document = diff(request_for(a.path, b.path, 2), [&](const std::string&) {
    std::filesystem::resize_file(b.path, 2000);
  });
  CHECK(exit_code(document) == 3);
  REQUIRE(document.failures.size() == 1);
  CHECK_THAT(document.failures[0].message, ContainsSubstring(b.path));
  CHECK(document.cases.empty());
}

TEST_CASE("of two folders what was compared before a signal is kept", "[engine][diff]") {
  const test::TemporaryFolder before, after;
  for (const test::TemporaryFolder* const folder : {&before, &after})
    for (const char* const name : {"a.h5", "b.h5", "c.h5"})
      std::filesystem::copy_file(committed("fla_fp32_small"), *folder / name);
  test::Child child([&](const std::function<void()>&) {
    prepare_signals();
    report::Document document;
    int pairs = 0;
    try {
      engine::diff(request_for(after.path(), before.path()), document, {}, [&](const std::string& name) {
        if (name == "inputs/q" && ++pairs == 3) std::raise(SIGTERM), check_interruption();
      });
    } catch (const Interrupted&) {
      return static_cast<int>(document.count(Verdict::pass));
    }
    return 91;
  });
  CHECK(child.exit_status() == 2);
}

TEST_CASE("diff compares tensors that are larger than its memory budget", "[engine][diff]") {
  test::ProblemSpec spec;
  spec.T = 3000, spec.H = 4, spec.HV = 4;
  const kda::Problem problem = test::make_problem(spec);
  const TemporaryFixture a(problem, nullptr, "a"), b(problem, nullptr, "b");
  DiffRequest request = request_for(a.path, b.path, 2);
  request.limits.memory_budget = problem.q.bytes() / 4;
  CHECK(exit_code(diff(request)) == 0);
}

}  // namespace diff_tests

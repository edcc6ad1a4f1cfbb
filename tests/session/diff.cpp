#include "session/diff.hpp"

#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "compare/comparison.hpp"
#include "compare/metrics.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using compare::Verdict;
using numeric::DType;
using test::TemporaryFixture;

namespace {

std::string committed(const char* name) { return test::case_fixtures() + "/" + name + ".h5"; }

}  // namespace

TEST_CASE("diff finds one element altered by one ULP, with its coordinates", "[session][diff]") {
  test::ProblemSpec spec;
  spec.B = 2, spec.T = 50, spec.H = 2, spec.HV = 4;
  const kda::Problem problem = test::make_problem(spec);
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const TemporaryFixture before(problem, &answer, "before");
  const std::size_t at = ((1 * 50 + 37) * 4 + 2) * spec.V + 3;
  auto elements = answer.o.elements<float>();
  elements[at] = std::nextafterf(elements[at], HUGE_VALF);
  const TemporaryFixture after(problem, &answer, "after");
  const report::Result result = session::diff({after.path, before.path, {}, {}, 2}, {});
  CHECK(result.exit_code() == 1);
  std::size_t failed = 0;
  for (const report::TensorResult& tensor : result.cases[0].tensors) {
    if (tensor.verdict == Verdict::pass) continue;
    ++failed;
    CHECK(tensor.name == "expected/somebody/o");
    CHECK(tensor.worst->place == "expected/somebody/o[b=1 t=37 h=2 v=3]");
    CHECK(tensor.reason == "max_ulp 1 > 0");
  }
  CHECK(failed == 1);
}

TEST_CASE("diff of equal files passes, of a file with itself is inconclusive", "[session][diff]") {
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const TemporaryFixture a(problem, &answer, "a"), b(problem, &answer, "b");
  CHECK(session::diff({a.path, b.path, {}, {}, 1}, {}).exit_code() == 0);
  const report::Result itself = session::diff({a.path, a.path, {}, {}, 1}, {});
  CHECK(itself.exit_code() == 1);
  CHECK_THAT(itself.cases[0].reason, ContainsSubstring("compared with itself"));
}

TEST_CASE("diff compares two groups of one file under the limits asked for", "[session][diff]") {
  const std::string path = committed("fla_fp32_small");
  session::DiffRequest request{path + ":fla_chunk", path + ":torch_fp64", {}, {}, 1};
  request.judging.limits = {compare::parse_limit("rms_ratio=5e-3")};
  CHECK(session::diff(request, {}).exit_code() == 0);
  request.judging.limits = {compare::parse_limit("rms_ratio=5e-4")};
  CHECK(session::diff(request, {}).exit_code() == 1);
  request.got = path + ":fla_chnk";
  CHECK_THROWS_WITH(session::diff(request, {}), ContainsSubstring("did you mean 'fla_chunk'?"));
}

TEST_CASE("a tensor only one side has is inconclusive", "[session][diff]") {
  const kda::Problem problem = test::make_problem({});
  const kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const TemporaryFixture with(problem, &answer, "with"), without(problem, nullptr, "without");
  const report::Result result = session::diff({with.path, without.path, {}, {}, 1}, {});
  CHECK(result.exit_code() == 1);
  CHECK_THAT(result.cases[0].reason, ContainsSubstring("only in"));
}

TEST_CASE("diff notices options that differ", "[session][diff]") {
  kda::Problem problem = test::make_problem({});
  const TemporaryFixture a(problem, nullptr, "a");
  problem.options.scale = 0.7;
  const TemporaryFixture b(problem, nullptr, "b");
  const report::Result result = session::diff({a.path, b.path, {}, {}, 1}, {});
  CHECK(result.cases[0].verdict == Verdict::fail);
  CHECK_THAT(result.cases[0].reason, ContainsSubstring("scale"));
}

TEST_CASE("diff refuses limits it cannot compute and decides nothing without any", "[session][diff]") {
  const std::string path = committed("fla_fp32_small");
  session::DiffRequest request{path + ":fla_chunk", path + ":torch_fp64", {}, {}, 1};
  request.judging.limits = {compare::parse_limit("scaled_ulp=8")};
  try {
    session::diff(request, {});
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
  }
  request.judging.limits = {compare::parse_limit("max_ulp=none")};
  CHECK(session::diff(request, {}).cases[0].verdict == Verdict::inconclusive);
  request.judging.limits = {compare::parse_limit("max_ulp=0")};
  CHECK(session::diff(request, {}).cases[0].verdict == Verdict::fail);
}

namespace {

/// What compare::Comparison says of two tensors held whole.
std::vector<std::pair<std::string, double>> metrics_of_whole(const tensor::Tensor& got,
                                                             const tensor::Tensor& expected, bool v_first) {
  compare::Comparison comparison(got.name(), got, v_first, false, {});
  comparison.add_all(expected);
  const compare::Measures measures = comparison.finish();
  std::vector<std::pair<std::string, double>> list;
  for (const compare::Metric& metric : compare::metrics())
    if (!metric.needs_magnitude) list.emplace_back(metric.name, metric.value(measures));
  return list;
}

}  // namespace

TEST_CASE("diff in blocks says of all captures what comparing whole tensors says", "[session][diff]") {
  std::size_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::case_fixtures())) {
    if (entry.path().extension() != ".h5") continue;
    const fixture::Fixture file = fixture::Fixture::open(entry.path().string());
    for (std::size_t i = 0; i + 1 < file.expected().size(); ++i) {
      const fixture::ExpectedGroup &a = file.expected()[i], &b = file.expected()[i + 1];
      for (const auto& [budget, threads] :
           {std::pair<std::size_t, int>{std::size_t{1} << 30, 2}, {1000, 1}}) {
        session::DiffRequest request{file.path() + ":" + a.name, file.path() + ":" + b.name, {}, {}, threads};
        request.limits.memory_budget = budget;
        const report::Result result = session::diff(request, {});
        for (const report::TensorResult& tensor : result.cases[0].tensors) {
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

TEST_CASE("a file cut off while diff reads it is bad input", "[session][diff]") {
  test::ProblemSpec spec;
  spec.T = 500;
  const kda::Problem problem = test::make_problem(spec);
  const TemporaryFixture a(problem, nullptr, "a"), b(problem, nullptr, "b");
  session::Log log;
  log.progress = [&](const std::string&) { std::filesystem::resize_file(b.path, 2000); };
  try {
    session::diff({a.path, b.path, {}, {}, 2}, log);
    FAIL_CHECK("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::input);
    CHECK_THAT(error.what(), ContainsSubstring(b.path));
  }
}

TEST_CASE("diff compares tensors that are larger than its memory budget", "[session][diff]") {
  test::ProblemSpec spec;
  spec.T = 3000, spec.H = 4, spec.HV = 4;
  const kda::Problem problem = test::make_problem(spec);
  const TemporaryFixture a(problem, nullptr, "a"), b(problem, nullptr, "b");
  session::DiffRequest request{a.path, b.path, {}, {}, 2};
  request.limits.memory_budget = problem.q.bytes() / 4;
  CHECK(session::diff(request, {}).exit_code() == 0);
}

#include "session/run.hpp"

#include <cmath>
#include <filesystem>

#include "base/error.hpp"
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

session::RunRequest request_for(std::vector<std::string> fixtures) {
  session::RunRequest request;
  request.fixtures = std::move(fixtures);
  return request;
}

const report::CaseResult* find(const report::Result& result, std::string_view variant,
                               std::string_view against, std::string_view dtype = "") {
  for (const report::CaseResult& item : result.cases)
    if (item.variant == variant && item.against == against && (dtype.empty() || item.dtype == dtype))
      return &item;
  return nullptr;
}

double metric(const report::CaseResult& item, std::string_view tensor, std::string_view name) {
  for (const report::TensorResult& result : item.tensors)
    if (result.name == tensor)
      for (const auto& [metric_name, value] : result.metrics)
        if (metric_name == name) return value;
  return std::nan("");
}

}  // namespace

TEST_CASE(
    "a run judges every variant and every recorded answer against the oracle, and variants against recorded "
    "answers",
    "[session]") {
  session::RunRequest request = request_for({committed("fla_fp32_small")});
  request.variants = {"naive", "recurrent", "chunk"};
  const report::Result result = session::run(request, {});
  CHECK(result.cases.size() == 15);
  CHECK(result.exit_code() == 0);
  for (const char* const name : {"naive", "recurrent", "chunk", "fla_chunk", "fla_recurrent", "torch_fp64"})
    CHECK(find(result, name, "oracle") != nullptr);
  for (const char* const name : {"naive", "recurrent", "chunk"})
    for (const char* const group : {"fla_chunk", "fla_recurrent", "torch_fp64"})
      CHECK(find(result, name, group) != nullptr);
  // Figures of code we did not write (docs/measurements.md): the recurrence about 5e-8, the tf32 chunk form
  // about 1e-3.
  CHECK(metric(*find(result, "fla_recurrent", "oracle"), "o", "rms_ratio") == Approx(5.3e-8).epsilon(0.05));
  CHECK(metric(*find(result, "fla_chunk", "oracle"), "o", "rms_ratio") == Approx(1e-3).epsilon(0.1));
  CHECK(find(result, "fla_chunk", "oracle")->recorded);
  CHECK(find(result, "fla_chunk", "oracle")->compute == "tf32");
}

TEST_CASE("every committed fixture passes in every dtype that holds it", "[session]") {
  session::RunRequest request = request_for({test::case_fixtures()});
  request.dtypes = {"fixture", "fp32", "fp64"};
  const report::Result result = session::run(request, {});
  CHECK(result.fixtures.size() == 9);
  for (const report::CaseResult& item : result.cases) {
    INFO(item.fixture << ' ' << item.variant << ' ' << item.dtype << " against " << item.against << ": "
                      << item.reason);
    CHECK(item.verdict == Verdict::pass);
  }
}

TEST_CASE(
    "a narrower dtype than the file's answers a rounded problem, and recorded answers are skipped with a "
    "reason",
    "[session]") {
  session::RunRequest request = request_for({committed("fla_fp32_small")});
  request.dtypes = {"bf16"};
  const report::Result result = session::run(request, {});
  const report::CaseResult* const ours = find(result, "recurrent", "oracle");
  REQUIRE(ours != nullptr);
  CHECK(ours->verdict == Verdict::pass);
  CHECK_THAT(ours->arithmetic, ContainsSubstring("inputs rounded to bf16"));
  const report::CaseResult* const theirs = find(result, "recurrent", "fla_chunk");
  REQUIRE(theirs != nullptr);
  CHECK(theirs->verdict == Verdict::skipped);
  CHECK_THAT(theirs->reason, ContainsSubstring("answers the stored inputs"));
}

TEST_CASE("a wrong recorded answer fails, and who disagrees with it is told so", "[session]") {
  const kda::Problem problem = test::make_problem({});
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  answer.o.set(11, answer.o.value(11) * 1.5 + 1);
  const TemporaryFixture file(problem, &answer);
  const report::Result result = session::run(request_for({file.path}), {});
  CHECK(result.exit_code() == 1);
  const report::CaseResult* const wrong = find(result, "somebody", "oracle");
  REQUIRE(wrong != nullptr);
  CHECK(wrong->verdict == Verdict::fail);
  CHECK(wrong->tensors[0].worst->index == std::vector<std::size_t>{0, 1, 0, 5});
  CHECK(wrong->tensors[1].verdict == Verdict::pass);
  CHECK_THAT(find(result, "recurrent", "somebody")->reason,
             ContainsSubstring("expected/somebody itself fails against the oracle"));
  CHECK(find(result, "recurrent", "oracle")->verdict == Verdict::pass);
}

TEST_CASE("an oracle that overflows makes its tensors inconclusive", "[session]") {
  kda::Problem problem = test::make_problem({});
  problem.g.set(20, 720.0);
  const TemporaryFixture file(problem);
  const report::Result result = session::run(request_for({file.path}), {});
  CHECK(result.exit_code() == 1);
  for (const report::CaseResult& item : result.cases) CHECK(item.verdict == Verdict::inconclusive);
}

TEST_CASE("nothing to compare is not a pass", "[session]") {
  const TemporaryFixture file(test::make_problem({}));
  session::RunRequest request = request_for({file.path});
  request.oracle.reset();
  const report::Result result = session::run(request, {});
  CHECK(result.cases.empty());
  CHECK(result.exit_code() == 1);
}

TEST_CASE("one bad file does not lose the others", "[session]") {
  const std::string bad = std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_bad/missing_q.h5";
  const report::Result result = session::run(
      request_for({committed("fla_fp32_small"), bad, "/no/such.h5", committed("fla_fp16_c32")}), {});
  CHECK(result.fixtures.size() == 2);
  REQUIRE(result.errors.size() == 2);
  CHECK_THAT(result.errors[0].message, ContainsSubstring("inputs/q is missing"));
  CHECK(result.exit_code() == 3);
  CHECK(result.count(Verdict::fail) == 0);
}

TEST_CASE("names that do not exist are usage errors with a suggestion", "[session]") {
  const auto usage = [](auto change) -> std::string {
    session::RunRequest request = request_for({committed("fla_fp32_small")});
    change(request);
    try {
      session::run(request, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return error.what();
    }
    return "accepted";
  };
  CHECK_THAT(usage([](auto& r) { r.variants = {"chnk"}; }), ContainsSubstring("did you mean 'chunk'?"));
  CHECK_THAT(usage([](auto& r) { r.dtypes = {"f32"}; }), ContainsSubstring("no dtype 'f32'"));
  CHECK_THAT(usage([](auto& r) { r.against = {"fla_chnk"}; }),
             ContainsSubstring("no fixture has a group expected/fla_chnk"));
  CHECK_THAT(usage([](auto& r) { r.judging.tensors = {"dqq"}; }), ContainsSubstring("no tensor 'dqq'"));
  CHECK_THAT(usage([](auto& r) { r.arithmetic = {"decay=par"}; }), ContainsSubstring("did you mean 'pair'?"));
  CHECK_THAT(usage([](auto& r) { r.variants = {"recurrent"}, r.arithmetic = {"decay=pair"}; }),
             ContainsSubstring("none of the selected variants"));
  CHECK_THAT(usage([](auto& r) { r.judging.limits = {compare::parse_limit("scaled_ulp=0.3")}; }),
             ContainsSubstring("finer than fp32"));
}

TEST_CASE("limits of the command line are applied and named", "[session]") {
  session::RunRequest request = request_for({committed("fla_fp32_small")});
  request.variants = {"recurrent"};
  request.against = {"oracle"};
  request.judging.limits = {compare::parse_limit("scaled_ulp=1")};
  const report::Result result = session::run(request, {});
  const report::TensorResult& tensor = find(result, "recurrent", "oracle")->tensors[0];
  CHECK(tensor.verdict == Verdict::fail);
  bool named = false;
  for (const compare::Limit& limit : tensor.limits)
    named = named || (limit.metric == "scaled_ulp" && limit.value == 1 && limit.source == "command line");
  CHECK(named);
}

TEST_CASE("results do not depend on the number of threads", "[session]") {
  const auto text = [](int threads) {
    session::RunRequest request = request_for({committed("fla_bf16_prefill"), committed("fla_fp32_varlen")});
    request.threads = threads;
    return report::write_json(session::run(request, {}), {});
  };
  const std::string one = text(1);
  CHECK(one == text(2));
  CHECK(one == text(7));
  CHECK(one == text(1));
}

TEST_CASE("garbage after a hard reset never passes", "[session]") {
  for (const double reset : {-1e6, -1e9, -HUGE_VAL}) {
    test::ProblemSpec spec;
    spec.T = 64, spec.K = spec.V = 16;
    kda::Problem problem = test::make_problem(spec);
    for (std::size_t k = 0; k < spec.K; ++k) problem.g.set(30 * spec.K + k, reset);
    kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
    for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) * 1.2);
    const TemporaryFixture wrong(problem, &answer, "reset-wrong");
    session::RunRequest request = request_for({wrong.path});
    request.variants = {"recurrent"};
    const session::Log silent{};
    const auto result = session::run(request, silent);
    // Somebody's chunk form may lose everything to sums of gates of that size: then nothing can be said.
    CHECK(find(result, "somebody", "oracle")->verdict == Verdict::inconclusive);
    CHECK(find(result, "recurrent", "oracle")->verdict == Verdict::pass);
  }
}

TEST_CASE("correct arithmetic passes for any number of channels, and wrong one fails", "[session]") {
  for (const std::size_t K : {1, 2, 3, 4, 6, 8})
    for (const std::size_t T : {64, 500}) {
      INFO("K = " << K << ", T = " << T);
      test::ProblemSpec spec;
      spec.K = K, spec.V = 16, spec.T = T, spec.HV = 2;
      const kda::Problem problem = test::make_problem(spec, K + T);
      kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
      const TemporaryFixture file(problem, &answer, "few");
      for (const report::CaseResult& item : session::run(request_for({file.path}), {}).cases) {
        INFO(item.variant << " against " << item.against << ": " << item.reason);
        CHECK(item.verdict == Verdict::pass);
      }
      // One element off by a tenth of the largest, and everything off by a hundred thousandth.
      kda::Answer one = test::run(problem, "recurrent", DType::fp32);
      double largest = 0;
      for (std::size_t i = 0; i < one.o.size(); ++i) largest = std::max(largest, std::fabs(one.o.value(i)));
      one.o.set(7, one.o.value(7) + largest / 10);
      for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) * (1 + 1e-5));
      for (const kda::Answer* const mutant : {&one, &answer}) {
        const TemporaryFixture wrong(problem, mutant, "few-wrong");
        session::RunRequest request = request_for({wrong.path});
        request.variants = {"naive"};
        CHECK(find(session::run(request, {}), "somebody", "oracle")->verdict == Verdict::fail);
      }
    }
}

TEST_CASE("the limits of a recorded answer do not depend on the chunks of ours", "[session]") {
  const auto limits = [](std::optional<std::size_t> chunk_size, std::string_view variant,
                         std::string_view against) {
    session::RunRequest request = request_for({committed("fla_fp32_small")});
    request.chunk_size = chunk_size;
    std::vector<double> values;
    for (const compare::Limit& limit : find(session::run(request, {}), variant, against)->tensors[0].limits)
      values.push_back(limit.value);
    return values;
  };
  CHECK(limits({}, "torch_fp64", "oracle") == limits(16, "torch_fp64", "oracle"));
  CHECK(limits({}, "recurrent", "torch_fp64") == limits(16, "recurrent", "torch_fp64"));
  CHECK(limits({}, "chunk", "oracle") != limits(16, "chunk", "oracle"));
}

TEST_CASE("a limit is checked against the element type of each tensor", "[session]") {
  session::RunRequest request = request_for({committed("fla_bf16_gva")});
  request.variants = {"recurrent"};
  request.judging.limits = {compare::parse_limit("rms_ratio=1e-5")};
  CHECK_THROWS_WITH(session::run(request, {}), ContainsSubstring("finer than bf16"));
  request.judging.tensors = {"final_state"};
  CHECK(find(session::run(request, {}), "recurrent", "oracle")->verdict == Verdict::pass);
}

TEST_CASE("without a limit that says anything there is no verdict", "[session]") {
  session::RunRequest request = request_for({committed("fla_fp32_small")});
  request.judging.limits = {compare::parse_limit("rms_ratio=none"), compare::parse_limit("scaled_ulp=none")};
  const report::Result result = session::run(request, {});
  CHECK(result.exit_code() == 1);
  for (const report::CaseResult& item : result.cases) CHECK(item.verdict == Verdict::inconclusive);
}

TEST_CASE("an arithmetic that a dtype does not have is skipped with its reason", "[session]") {
  session::RunRequest request = request_for({committed("fla_fp32_small")});
  request.variants = {"recurrent"};
  request.dtypes = {"fp32", "fp64"};
  request.arithmetic = {"exponential=cuda"};
  request.against = {"oracle"};
  const report::Result result = session::run(request, {});
  CHECK(find(result, "recurrent", "oracle", "fp32")->verdict == Verdict::pass);
  std::size_t skipped = 0;
  for (const report::CaseResult& item : result.cases)
    if (item.verdict == Verdict::skipped && item.dtype == "fp64") {
      ++skipped;
      CHECK_THAT(item.reason, ContainsSubstring("fp32 only"));
    }
  CHECK(skipped == 1);
}

TEST_CASE("names given twice count once", "[session]") {
  const auto cases = [](int times) {
    session::RunRequest request = request_for({});
    for (int i = 0; i < times; ++i) {
      request.fixtures.push_back(committed("fla_fp32_small"));
      request.variants.insert(request.variants.end(), {"naive", "recurrent"});
      request.dtypes.insert(request.dtypes.end(), {"fixture", "fp32"});
      request.judging.tensors.insert(request.judging.tensors.end(), {"o", "final_state"});
    }
    return report::write_json(session::run(request, {}), {});
  };
  CHECK(cases(1) == cases(3));
  CHECK_THAT(cases(1), ContainsSubstring("\"passed\": 11"));
}

// --- diff
// -----------------------------------------------------------------------------------------------------------

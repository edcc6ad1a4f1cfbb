// Verdicts of `run`: who is judged against whom, by which limits, and what never passes.
#include <cmath>
#include <filesystem>

#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"
#include "support/temporary_fixture.hpp"

namespace verdicts_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::DType;
using plan::Names;
using report::exit_code;
using test::case_of;
using test::has_case;
using test::limits;
using test::ran;
using test::request_for;
using test::TemporaryFixture;

namespace {

std::string committed(const char* name) { return test::case_fixtures() + "/" + name + ".h5"; }

double metric(const report::CaseResult& item, std::string_view tensor, std::string_view name) {
  return test::metric_of(test::tensor_of(item, tensor), name);
}

/// o of an answer in a file, beside the oracle.
report::TensorResult recorded_o(const kda::Problem& problem, const kda::Answer& answer) {
  const TemporaryFixture file(problem, &answer);
  plan::Request request = request_for({file.path}, plan::Names{});
  return test::tensor_of(case_of(ran(request), "somebody", "oracle"), "o");
}

}  // namespace

TEST_CASE(
    "a run judges every variant and every recorded answer against the oracle, and variants against recorded "
    "answers",
    "[engine]") {
  plan::Request request =
      request_for({committed("fla_fp32_small")}, plan::Names{"naive", "recurrent", "chunk"});
  const report::Document document = ran(request);
  CHECK(document.cases.size() == 15);
  CHECK(exit_code(document) == 0);
  for (const char* const name : {"naive", "recurrent", "chunk", "fla_chunk", "fla_recurrent", "torch_fp64"})
    CHECK(has_case(document, name, "oracle"));
  for (const char* const name : {"naive", "recurrent", "chunk"})
    for (const char* const group : {"fla_chunk", "fla_recurrent", "torch_fp64"})
      CHECK(has_case(document, name, group));
  // Figures of code we did not write (docs/performance.md): the recurrence about 5e-8, the tf32 chunk form
  // about 1e-3.
  CHECK(metric(case_of(document, "fla_recurrent", "oracle"), "o", "rms_ratio") ==
        Approx(5.3e-8).epsilon(0.05));
  CHECK(metric(case_of(document, "fla_chunk", "oracle"), "o", "rms_ratio") == Approx(1e-3).epsilon(0.1));
  CHECK(case_of(document, "fla_chunk", "oracle").recorded());
  CHECK(case_of(document, "fla_chunk", "oracle").compute == "tf32");
  // What a user brought comes first.
  CHECK(document.cases.front().recorded());
  CHECK(document.cases.front().against == "oracle");
}

TEST_CASE("every committed fixture passes in every dtype that holds it", "[engine]") {
  test::Sampled sample(3);
  INFO(sample.text());
  plan::Request request = request_for({});
  for (const std::string& path : test::all_fixture_files())
    if (path.starts_with(test::case_fixtures()) && sample.next()) request.targets.push_back(path);
  request.selection.dtypes = Names{"fixture", "fp32", "fp64"};
  const report::Document document = ran(request);
  CHECK(document.problems.size() >= 3);
  for (const report::CaseResult& item : document.cases) {
    INFO(item.fixture << ' ' << item.variant << ' ' << item.dtype << " against " << item.against << ": "
                      << item.reason);
    if (item.variant == "fla_recurrent" && item.fixture == "fla_bf16_softplus_gate_backward" &&
        item.against == "oracle") {
      CHECK(item.verdict == Verdict::fail);  // a true finding, docs/explain.md
      CHECK_THAT(item.reason, ContainsSubstring("softplus as log2(1 + 2^x) by lg2.approx"));
      continue;
    }
    CHECK(item.verdict == Verdict::pass);
  }
}

TEST_CASE("a wrong recorded answer is one failure, as nobody is held against what is wrong of it",
          "[engine]") {
  const kda::Problem problem = test::make_problem({});
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  answer.o.set(11, answer.o.value(11) * 1.5 + 1);
  const TemporaryFixture file(problem, &answer);
  const report::Document document = ran(request_for({file.path}));
  CHECK(exit_code(document) == 1);
  const report::CaseResult& wrong = case_of(document, "somebody", "oracle");
  CHECK(wrong.verdict == Verdict::fail);
  CHECK(wrong.tensors[0].worst->index == std::vector<std::size_t>{0, 1, 0, 5});
  CHECK(wrong.tensors[1].verdict == Verdict::pass);
  CHECK(document.count(Verdict::fail) == 1);
  const report::CaseResult& ours = case_of(document, "recurrent", "somebody");
  CHECK(ours.verdict == Verdict::pass);
  CHECK(ours.reason.empty());
  const report::TensorResult& o = test::tensor_of(ours, "o");
  CHECK(o.verdict == Verdict::skipped);
  CHECK(o.reason == "not compared: somebody fails");
  CHECK(o.metrics.empty());
  CHECK(test::tensor_of(ours, "final_state").verdict == Verdict::pass);
  CHECK(case_of(document, "recurrent", "oracle").verdict == Verdict::pass);
  // Without the oracle nobody knows who of the two is wrong.
  plan::Request blind = request_for({file.path});
  blind.oracle = plan::OracleChoice::none;
  CHECK(case_of(ran(blind), "recurrent", "somebody").verdict == Verdict::fail);
}

TEST_CASE("a large problem has its truth in fp64 where the bound of its error allows, and the same verdict",
          "[engine]") {
  const std::string large = ":T=1024,H=16,K=128,V=128,dtype=bf16";
  const auto judged = [](const std::string& target, std::optional<plan::OracleChoice> oracle) {
    plan::Request request = request_for({target}, plan::Names{"recurrent"});
    request.test = false, request.oracle = oracle;
    return case_of(ran(request), "recurrent", "oracle");
  };
  const report::CaseResult usual = judged("slow_alpha" + large, {}),
                           exact = judged("slow_alpha" + large, plan::OracleChoice::double_double);
  CHECK(usual.oracle == "fp64");
  CHECK(usual.oracle_error.value() <= 0x1p-30);
  CHECK((exact.oracle == "double-double" && !exact.oracle_error));
  CHECK(usual.verdict == exact.verdict);
  CHECK(metric(usual, "o", "rms_ratio") == Approx(metric(exact, "o", "rms_ratio")).epsilon(1e-6));
  // What grows in the state makes an error that is there grow, too.
  const report::CaseResult wide = judged("residual_cancel" + large, {});
  CHECK(wide.oracle == "double-double");
  CHECK(!wide.oracle_error);
  CHECK(judged("slow_alpha:T=64,H=1", {}).oracle == "double-double");  // small
}

TEST_CASE("an oracle that overflows makes its tensors inconclusive", "[engine]") {
  kda::Problem problem = test::make_problem({});
  problem.g.set(20, 720.0);
  const TemporaryFixture file(problem);
  const report::Document document = ran(request_for({file.path}));
  CHECK(exit_code(document) == 1);
  CHECK_FALSE(document.cases.empty());
  for (const report::CaseResult& item : document.cases) CHECK(item.verdict == Verdict::inconclusive);
}

TEST_CASE("a NaN in a head that is none of its own fails, though the oracle has one in another", "[engine]") {
  test::ProblemSpec spec;
  spec.HV = 2;
  kda::Problem problem = test::make_problem(spec);
  problem.v.set(1 * spec.V + 2, std::nan(""));  // token 0 of head 1
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  for (const bool clean : {true, false}) {
    if (!clean) answer.o.set(3, std::nan(""));  // token 0 of head 0
    const report::TensorResult o = recorded_o(problem, answer);
    CHECK(o.verdict == (clean ? Verdict::pass : Verdict::fail));
    if (!clean) CHECK_THAT(o.reason, ContainsSubstring("the oracle is not finite at"));
  }
}

TEST_CASE("what overflows where the truth does is not judged, and a NaN in another head fails", "[engine]") {
  test::ProblemSpec spec;
  spec.HV = 2;
  kda::Problem problem = test::make_problem(spec);
  problem.g.set((10 * spec.HV + 1) * spec.K, 100.0);  // of head 1: exp(100) is beyond fp32, not beyond fp64
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  answer.o.set((11 * spec.HV + 1) * spec.V, std::nan(""));
  for (const bool clean : {true, false}) {
    if (!clean) answer.o.set(3, std::nan(""));  // token 0 of head 0
    const report::TensorResult o = recorded_o(problem, answer);
    INFO(o.reason);
    CHECK(o.verdict == (clean ? Verdict::pass : Verdict::fail));
    if (!clean) CHECK_THAT(o.reason, ContainsSubstring("beyond the range of the arithmetic"));
  }
}

TEST_CASE("one bad file does not lose the others", "[engine]") {
  const std::string bad = std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_bad/missing_q.h5";
  const report::Document document =
      ran(request_for({committed("fla_fp32_small"), bad, "/no/such.h5", committed("fla_fp16_c32")}));
  CHECK(document.problems.size() == 2);
  REQUIRE(document.failures.size() == 2);
  CHECK_THAT(document.failures[0].message, ContainsSubstring("inputs/q is missing"));
  CHECK(document.failures[0].path == bad);
  CHECK(exit_code(document) == 3);
  CHECK(document.count(Verdict::fail) == 0);
  CHECK(document.count(Verdict::pass) > 0);
}

TEST_CASE("garbage after a hard reset never passes", "[engine]") {
  for (const double reset : {-1e6, -1e9, -HUGE_VAL}) {
    test::ProblemSpec spec;
    spec.T = 64, spec.K = spec.V = 16;
    kda::Problem problem = test::make_problem(spec);
    for (std::size_t k = 0; k < spec.K; ++k) problem.g.set(30 * spec.K + k, reset);
    kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
    for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) * 1.2);
    const TemporaryFixture wrong(problem, &answer, "reset-wrong");
    plan::Request request = request_for({wrong.path}, plan::Names{"recurrent"});
    const report::Document document = ran(request);
    CHECK(case_of(document, "somebody", "oracle").verdict != Verdict::pass);
    CHECK(case_of(document, "recurrent", "oracle").verdict == Verdict::pass);
  }
}

TEST_CASE("correct arithmetic passes for any number of channels, and wrong one fails", "[engine]") {
  test::Sampled sample(3);
  INFO(sample.text());
  for (const std::size_t K : {1, 2, 3, 4, 6, 8})
    for (const std::size_t T : {64, 500}) {
      if (!sample.next()) continue;
      INFO("K = " << K << ", T = " << T);
      test::ProblemSpec spec;
      spec.K = K, spec.V = 16, spec.T = T, spec.HV = 2;
      const kda::Problem problem = test::make_problem(spec, K + T);
      kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
      const TemporaryFixture file(problem, &answer, "few");
      for (const report::CaseResult& item : ran(request_for({file.path})).cases) {
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
        plan::Request request = request_for({wrong.path}, plan::Names{"naive"});
        CHECK(case_of(ran(request), "somebody", "oracle").verdict == Verdict::fail);
      }
    }
}

TEST_CASE("the limits of a recorded answer do not depend on the chunks of ours", "[engine]") {
  const auto values = [](std::optional<std::size_t> chunk_size, std::string_view variant,
                         std::string_view against) {
    plan::Request request = request_for({committed("fla_fp32_small")});
    request.chunk_size = chunk_size;
    std::vector<double> list;
    const report::Document document = ran(request);
    for (const judge::Limit& limit : case_of(document, variant, against).tensors[0].limits)
      list.push_back(limit.value);
    return list;
  };
  CHECK(values({}, "torch_fp64", "oracle") == values(16, "torch_fp64", "oracle"));
  CHECK(values({}, "recurrent", "torch_fp64") == values(16, "recurrent", "torch_fp64"));
  CHECK(values({}, "chunk", "oracle") != values(16, "chunk", "oracle"));
}

TEST_CASE("a precision that nobody stated is said to be assumed", "[engine]") {
  // The attribute compute of the group is what the limits of a recorded answer follow from.
  const std::string good = std::string(KDA_CHECK_SOURCE_DIR) + "/tests/fixtures_good/";
  plan::Request request = request_for({committed("fla_bf16_prefill"), good + "strangers.h5"}, plan::Names{});
  const report::Document document = ran(request);
  bool assumed = false;
  for (const report::CaseResult& item : document.cases) {
    if (item.path.find("fla_bf16") != std::string::npos) CHECK_FALSE(item.compute_assumed);
    assumed = assumed || item.compute_assumed;
  }
  REQUIRE(assumed);
  std::string notes;
  for (const report::ProblemResult& problem : document.problems)
    for (const std::string& note : problem.notes) notes += note + "\n";
  CHECK_THAT(notes, ContainsSubstring("compute assumed fp64, the element type of its o"));
  CHECK_THAT(notes, ContainsSubstring("somebody: not judged, as the format has no place for it: logits"));
}

TEST_CASE("a run keeps profiles only when a report draws them, and changes nothing else by it", "[engine]") {
  plan::Request request = request_for({committed("fla_fp32_small")}, plan::Names{"recurrent"});
  const report::Document plain = ran(request);
  engine::Resources drawing;
  drawing.draw = true;
  const report::Document drawn = ran(request, drawing);
  REQUIRE(plain.cases.size() == drawn.cases.size());
  for (std::size_t i = 0; i < plain.cases.size(); ++i)
    for (std::size_t j = 0; j < plain.cases[i].tensors.size(); ++j) {
      const report::TensorResult &a = plain.cases[i].tensors[j], &b = drawn.cases[i].tensors[j];
      CHECK(!a.profile);
      REQUIRE(b.profile);
      CHECK(a.metrics == b.metrics);
      std::uint64_t total = 0;
      for (const std::uint64_t count : b.profile->distances) total += count;
      CHECK(total == tensor::element_count(b.shape));
      CHECK(b.profile->growth.empty() == (b.name != "o"));
    }
}

}  // namespace verdicts_tests

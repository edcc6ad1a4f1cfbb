#include "judge/verdict.hpp"

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "judge/measures/comparison.hpp"
#include "support/catch.hpp"

namespace verdict_tests {

using namespace kda_check;
using namespace kda_check::judge;
using numeric::ComputeFormat;
using numeric::DType;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

Measures measured(const std::vector<double>& got, const std::vector<double>& expected) {
  tensor::Tensor a("x", DType::fp32, {got.size()}), b("x", DType::fp32, {got.size()});
  for (std::size_t i = 0; i < got.size(); ++i) a.set(i, got[i]), b.set(i, expected[i]);
  Comparison comparison("x", a, false, false, {});
  comparison.add_all(b);
  return comparison.finish();
}

const std::vector<Limit> exact{{"nonfinite", 0, "exact"}, {"max_ulp", 0, "exact"}};

double limit_on(const std::vector<Limit>& limits, const std::string& metric) {
  for (const Limit& limit : limits)
    if (limit.metric == metric) return limit.value;
  return not_a_number;
}

}  // namespace

TEST_CASE("equal finite tensors pass", "[verdict]") {
  CHECK(judge::judge(measured({1, 2}, {1, 2}), exact).verdict == Verdict::pass);
}

TEST_CASE("a metric above its limit fails and says by how much", "[verdict]") {
  const Judgement judgement = judge::judge(measured({1 + 0x1p-22, 2}, {1, 2}), exact);
  CHECK(judgement.verdict == Verdict::fail);
  CHECK(judgement.metric == "max_ulp");
  CHECK(judgement.reason == "max_ulp 2 > 0");
}

TEST_CASE("a class that differs fails, and no maximum can hide it", "[verdict]") {
  for (const double odd : {not_a_number, HUGE_VAL, -HUGE_VAL}) {
    CHECK(judge::judge(measured({odd, 2}, {1, 2}), exact).verdict == Verdict::fail);
    CHECK(judge::judge(measured({1, 2}, {odd, 2}), exact).verdict == Verdict::fail);
  }
  CHECK(judge::judge(measured({not_a_number, 2}, {1, 2}), exact).reason == "1 x NaN for finite");
}

TEST_CASE("NaN in any position of a failing tensor does not make it pass", "[verdict]") {
  for (std::size_t at = 0; at < 3; ++at) {
    std::vector<double> got{1, 2, 3};
    got[at] = not_a_number;
    CHECK(judge::judge(measured(got, {1, 2, 3}), exact).verdict == Verdict::fail);
  }
}

TEST_CASE("a metric that is not a number fails", "[verdict]") {
  Measures m = measured({1, 2}, {1, 2});
  m.rms_ratio = not_a_number;
  CHECK(judge::judge(m, {{"rms_ratio", 1, "derived"}}).verdict == Verdict::fail);
}

TEST_CASE("both sides NaN is inconclusive, never a pass", "[verdict]") {
  const Judgement judgement = judge::judge(measured({1, not_a_number}, {1, not_a_number}), exact);
  CHECK(judgement.verdict == Verdict::inconclusive);
  CHECK_THAT(judgement.reason, ContainsSubstring("NaN"));
  // ... and does not cover up a failure elsewhere.
  CHECK(judge::judge(measured({1.5, not_a_number}, {1, not_a_number}), exact).verdict == Verdict::fail);
}

TEST_CASE("no ratio is asked for that half the smallest step exceeds", "[verdict]") {
  Measures m = measured({0x1p-149, 0x1p-148}, {0x1p-149, 0x1p-148});
  REQUIRE(m.expected_rms == Approx(std::sqrt(2.5) * 0x1p-149));
  const double least = 0.5 / std::sqrt(2.5);
  const std::vector<Limit> limits = judge::judge(m, {{"nonfinite", 0, "derived"},
                                                     {"rms_ratio", 1e-3, "command line"},
                                                     {"bias", 0, "exact"},
                                                     {"max_ulp", 0.25, "command line"},
                                                     {"head_rms_ratio", 0.9, "command line"}})
                                        .limits;
  CHECK(limits[1].value == Approx(least));
  CHECK(limits[1].source == "storage");
  CHECK(limits[2].value == 0);
  CHECK(limits[3].value == 0.25);
  CHECK(limits[4].value == 0.9);
  // Such a limit alone decides nothing, others do.
  CHECK(judge::judge(m, {limits[0], limits[1]}).verdict == Verdict::inconclusive);
  CHECK(judge::judge(m, {limits[0], limits[1], limits[3]}).verdict == Verdict::pass);
  const Measures ordinary = measured({1, 2}, {1, 2});
  CHECK(judge::judge(ordinary, {{"rms_ratio", 1e-9, "command line"}}).limits[0].value == 1e-9);
}

TEST_CASE("an element of a gradient that cancels is no fault where it is like its twins", "[verdict]") {
  Measures m = measured({1, 2 + 0x1p-22}, {1, 2});
  m.has_magnitude = true, m.scaled_ulp.value = 900;
  judge::Evidence evidence;
  evidence.twins = judge::TwinJudgement{}, evidence.compute = numeric::ComputeFormat::tf32;
  const auto verdict_of = [&](bool backward, double ratio) {
    evidence.backward = backward, evidence.twins->ratio = ratio;
    return judge::judge(m, {{"rms_ratio", 1e-3, "derived"}, {"scaled_ulp", 4, "derived"}}, evidence).verdict;
  };
  CHECK(verdict_of(true, 0.5) == Verdict::pass);
  CHECK(verdict_of(true, 1.1) == Verdict::fail);
  CHECK(verdict_of(false, 0.5) == Verdict::fail);
  evidence.compute = numeric::ComputeFormat::fp32;
  CHECK(verdict_of(true, 0.5) == Verdict::fail);
}

TEST_CASE("zeros show nothing unless zero is what is expected", "[verdict]") {
  tensor::Tensor got("x", DType::fp32, {2});
  got.set(0, 0), got.set(1, -0.0);
  const auto judged = [&](double expected, bool zeros_decide) {
    Comparison comparison("x", got, false, false, {});
    const double hi[] = {expected, -expected}, lo[] = {0, 0};
    comparison.add(0, 2, {hi, lo, nullptr});
    return judge::judge(comparison.finish(), {{"nonfinite", 0, "derived"}, {"max_ulp", 0, "command line"}},
                        {.zeros_decide = zeros_decide});
  };
  CHECK(judged(0, false).verdict == Verdict::inconclusive);
  CHECK(judged(0, true).verdict == Verdict::pass);
  for (const bool decide : {false, true}) {
    CHECK(judged(1e-60, decide).verdict == (decide ? Verdict::pass : Verdict::inconclusive));
    CHECK(judged(1e-30, decide).verdict == Verdict::fail);
  }
}

TEST_CASE("what is not finite in a head that the oracle knows fails, whatever happens in other heads",
          "[verdict]") {
  // o [1, 12, 3, 2] of two packed sequences; the oracle has a NaN in head 1 of the second.
  const std::size_t count = 12 * 3 * 2;
  const auto at = [](std::size_t t, std::size_t head) { return (t * 3 + head) * 2; };
  const auto judged = [&](std::vector<std::size_t> lost) {
    tensor::Tensor got("o", DType::fp32, {1, 12, 3, 2});
    std::vector<double> hi(count, 1.0), lo(count, 0.0);
    for (std::size_t i = 0; i < count; ++i) got.set(i, 1);
    hi[at(9, 1)] = not_a_number;
    for (const std::size_t i : lost) got.set(i, not_a_number);
    ComparisonOptions options;
    options.against_oracle = true;
    options.cu_seqlens = {0, 5, 5, 12};
    Comparison comparison("o", got, false, false, options);
    comparison.add(0, count, {hi.data(), lo.data(), nullptr});
    return judge::judge(comparison.finish(), {{"nonfinite", 0, "derived"}, {"rms_ratio", 1e-3, "derived"}});
  };
  CHECK(judged({}).verdict == Verdict::pass);
  CHECK(judged({at(9, 1)}).verdict == Verdict::pass);
  // A chunk form multiplies what lies behind a token by zero, which a NaN survives.
  CHECK(judged({at(9, 1), at(8, 1), at(5, 1)}).verdict == Verdict::pass);
  for (const std::size_t elsewhere : {at(9, 0), at(9, 2) + 1, at(4, 1), at(0, 2)}) {
    const Judgement judgement = judged({at(9, 1), at(8, 1), elsewhere});
    CHECK(judgement.verdict == Verdict::fail);
    CHECK(judgement.metric == "nonfinite");
    CHECK_THAT(judgement.reason,
               ContainsSubstring("1 element of another class where the oracle is within range"));
  }
}

TEST_CASE("what a head answers long before its truth leaves the range counts, backwards long behind it",
          "[verdict]") {
  const auto judged = [&](std::size_t lost, std::size_t wrong, bool backward) {
    tensor::Tensor got("o", DType::fp32, {1, 200, 1, 1});
    std::vector<double> hi(200, 1.0), lo(200, 0.0);
    for (std::size_t t = 0; t < 200; ++t) got.set(t, 1);
    hi[lost] = not_a_number;
    got.set(wrong, not_a_number);
    ComparisonOptions options;
    options.against_oracle = true;
    Comparison comparison("o", got, false, false, options);
    comparison.add(0, 200, {hi.data(), lo.data(), nullptr});
    Evidence evidence;
    evidence.backward = backward;
    return judge::judge(comparison.finish(), {{"nonfinite", 0, "derived"}, {"rms_ratio", 1e-3, "derived"}},
                        evidence)
        .verdict;
  };
  CHECK(judged(150, 20, false) == Verdict::fail);
  CHECK(judged(150, 120, false) == Verdict::pass);
  CHECK(judged(20, 150, false) == Verdict::pass);
  CHECK(judged(150, 20, true) == Verdict::pass);
  CHECK(judged(20, 150, true) == Verdict::fail);
}

TEST_CASE("bounds are no tighter and no wider than what the stable computation reads says", "[verdict]") {
  const auto bound = [](const char* metric, double derived, double read, std::size_t elements) {
    Evidence evidence;
    evidence.stable_rms_ratio = read;
    return bounds({{metric, derived, "derived"}}, evidence, elements).front().value;
  };
  const VerdictConstants c;
  CHECK(bound("rms_ratio", 0.003, 0.001, 10000) == 0.003);
  CHECK(bound("rms_ratio", 1e9, 0.001, 10000) == c.margin * 0.001);
  CHECK(bound("rms_ratio", 1e-9, 0.001, 10000) == c.least_margin * 0.001);
  CHECK(bound("rms_ratio", 0.003, 0, 10000) == 0.003);
  CHECK(bound("rms_ratio", 0.03, 0.001, 10) == 0.03);  // one of few may be larger than all of these
  CHECK(bound("rms_ratio", 1e9, 0.001, 10) == c.most_of_few * 0.001);
  CHECK(bound("rms_ratio", 1e-9, 0.001, 10) == c.margin_of_few * 0.001);
  CHECK(bound("scaled_ulp", 100, 50, 10000) == 100);

  // Of bf16 products a single one errs by up to half a step.
  Evidence few;
  few.stable_rms_ratio = 1e-9, few.compute = numeric::ComputeFormat::bf16, few.terms = 2;
  CHECK(bounds({{"rms_ratio", 1.0, "derived"}}, few, 10).front().value == c.least_steps * 0x1p-8 * 2);

  Evidence evidence;
  evidence.stable_rms_ratio = 1;
  CHECK(bounds({{"rms_ratio", 1e-3, "command line"}}, evidence, 10000).front().value == 1e-3);
}

TEST_CASE("how far beyond its twins an output has to be to fail follows what is known of it", "[verdict]") {
  const auto verdict = [](double ratio, bool known, bool of_a_region, std::size_t elements = 10000) {
    Measures m = measured({1, 2}, {1, 2});
    m.elements = m.finite = elements;
    Evidence evidence;
    TwinJudgement& twins = evidence.twins.emplace();
    twins.ratio = ratio, twins.floor = 0.01, twins.uneven = of_a_region, twins.place = "head 3";
    evidence.computation_is_known = known;
    return judge::judge(m, {{"rms_ratio", 0.01, "derived"}}, evidence).verdict;
  };
  CHECK(verdict(1.4, true, true) == Verdict::pass);
  CHECK(verdict(1.6, true, false) == Verdict::fail);
  CHECK(verdict(1.4, false, true) == Verdict::pass);
  CHECK(verdict(2.9, false, true) == Verdict::inconclusive);
  CHECK(verdict(2.9, false, false) == Verdict::pass);
  CHECK(verdict(3.1, false, true) == Verdict::fail);
  CHECK(verdict(3.1, false, false) == Verdict::inconclusive);
  CHECK(verdict(3.9, false, true, 100) ==
        Verdict::inconclusive);  // too few to tell one computation from another
  CHECK(verdict(5, false, true, 100) == Verdict::fail);
}

TEST_CASE("an unlicensed rounding fails by its name, and a floor above what is asked for is no pass",
          "[verdict]") {
  const Measures m = measured({1, 2}, {1, 2});
  Evidence evidence;
  evidence.unlicensed = "beta is rounded to bf16";
  CHECK(judge::judge(m, {{"rms_ratio", 0.01, "derived"}}, evidence).verdict == Verdict::fail);
  CHECK(judge::judge(m, {{"rms_ratio", 0.01, "derived"}}, evidence).reason ==
        "rounding: " + evidence.unlicensed);
  evidence = {};
  CHECK(judge::judge(m, {{"rms_ratio", 0.06, "derived"}}, evidence).verdict == Verdict::inconclusive);
  evidence.floor = 0.1;
  CHECK(judge::judge(m, {{"rms_ratio", 0.06, "derived"}}, evidence).verdict == Verdict::pass);
  evidence = {};
  for (const Verdict wanted : {Verdict::pass, Verdict::fail}) {
    evidence.undecided = wanted;
    CHECK(judge::judge(m, {{"rms_ratio", 0.06, "derived"}}, evidence).verdict == wanted);
  }
}

TEST_CASE("equal infinities alone are inconclusive, beside finite values they are equal", "[verdict]") {
  CHECK(judge::judge(measured({HUGE_VAL}, {HUGE_VAL}), exact).verdict == Verdict::inconclusive);
  CHECK(judge::judge(measured({HUGE_VAL, 1}, {HUGE_VAL, 1}), exact).verdict == Verdict::pass);
}

TEST_CASE("all zeros, no elements and a non-finite oracle are inconclusive", "[verdict]") {
  CHECK(judge::judge(measured({0, -0.0}, {0, 0}), exact).verdict == Verdict::inconclusive);
  CHECK(judge::judge(measured({0, 0}, {0, 0}), exact, {.zeros_decide = true}).verdict == Verdict::pass);
  CHECK(judge::judge(measured({}, {}), exact).verdict == Verdict::inconclusive);
  Measures m = measured({1}, {1});
  m.undecided = 1;
  m.finite = 0;
  CHECK(judge::judge(m, exact).verdict == Verdict::inconclusive);
  Measures wrong_elsewhere = measured({1, 2}, {1, 3});
  wrong_elsewhere.undecided = 1;
  CHECK(judge::judge(wrong_elsewhere, exact).verdict == Verdict::fail);
  CHECK_THAT(judge::judge(wrong_elsewhere, exact).reason,
             ContainsSubstring("max_ulp") && ContainsSubstring("the oracle is not finite at 1 of 2"));
}

TEST_CASE("limits that show nothing about finite values do not pass anything", "[verdict]") {
  const Measures m = measured({1, 2}, {1, 2});
  CHECK(judge::judge(m, {{"nonfinite", 0, "derived"}}).verdict == Verdict::inconclusive);
  CHECK_THAT(judge::judge(m, {}).reason, ContainsSubstring("no limit applies"));
  CHECK(judge::judge(m, {{"max_ulp", HUGE_VAL, "command line"}}).verdict == Verdict::inconclusive);
  // Without magnitudes scaled_ulp cannot be evaluated.
  CHECK(judge::judge(m, {{"nonfinite", 0, "exact"}, {"scaled_ulp", 8, "command line"}}).verdict ==
        Verdict::inconclusive);
  for (const double hollow : {1.0, 59.0, HUGE_VAL}) {
    const std::vector<Limit> derived{{"rms_ratio", hollow, "derived"}, {"scaled_ulp", 1e9, "derived"}};
    CHECK(judge::judge(m, derived).verdict == Verdict::inconclusive);
    CHECK(judge::judge(measured({1, 20}, {1, 2}), {{"rms_ratio", 1, "derived"}}).verdict == Verdict::fail);
  }
  // Whoever sets a limit by hand means it.
  CHECK(judge::judge(m, {{"rms_ratio", 2, "command line"}}).verdict == Verdict::pass);
}

TEST_CASE("the bias is judged by its size", "[verdict]") {
  CHECK(judge::judge(measured({0.9, 1.8}, {1, 2}), {{"bias", 0.05, "command line"}}).verdict ==
        Verdict::fail);
  CHECK(judge::judge(measured({0.99, 1.98}, {1, 2}), {{"bias", 0.05, "command line"}}).verdict ==
        Verdict::pass);
}

TEST_CASE("the worst verdict decides, and none is inconclusive", "[verdict]") {
  CHECK(worst_of({Verdict::pass, Verdict::fail, Verdict::inconclusive}) == Verdict::fail);
  CHECK(worst_of({Verdict::pass, Verdict::inconclusive}) == Verdict::inconclusive);
  CHECK(worst_of({Verdict::pass, Verdict::skipped}) == Verdict::pass);
  CHECK(worst_of({Verdict::skipped}) == Verdict::skipped);
  CHECK(worst_of({}) == Verdict::inconclusive);
}

TEST_CASE("elements of gradients fail in fp32 but where chunks cancel and twins agree", "[verdict]") {
  const auto verdict = [](bool chunks_cancel, double twins) {
    Measures m = measured({1, 2}, {1, 2});
    m.elements = m.finite = 10000, m.differing = 1;
    m.has_magnitude = true, m.scaled_ulp.value = 1e6;
    Evidence evidence;
    evidence.backward = true, evidence.chunks_cancel = chunks_cancel, evidence.computation_is_known = true;
    evidence.compute = numeric::ComputeFormat::fp32;
    evidence.twins.emplace().ratio = twins;
    return judge::judge(m, {{"rms_ratio", 0.01, "derived"}, {"scaled_ulp", 100, "derived"}}, evidence)
        .verdict;
  };
  CHECK(verdict(false, 0.5) == Verdict::fail);
  CHECK(verdict(true, 0.5) == Verdict::pass);
  CHECK(verdict(true, 2) == Verdict::fail);
}

TEST_CASE("derived limits follow the operands of the products", "[limits]") {
  const auto alone = [&](ComputeFormat compute, DType storage, Form form) {
    return derived_limits({compute, storage, units_lost(compute, form, 4, 10)});
  };
  // fp32 recurrence: 16 units and half the persistence, plus one step.
  CHECK(limit_on(alone(ComputeFormat::fp32, DType::fp32, Form::recurrence), "scaled_ulp") == 19);
  // Rounded to bfloat16 on the way out: one step, and next to nothing.
  CHECK(limit_on(alone(ComputeFormat::fp32, DType::bf16, Form::recurrence), "scaled_ulp") ==
        Approx(1).epsilon(0.001));
  // tf32 operands: an fp32 limit would rightly fail them, this one passes them.
  CHECK(limit_on(alone(ComputeFormat::tf32, DType::fp32, Form::chunk), "rms_ratio") ==
        Approx(2 * 0x1p-10).epsilon(0.01));
  CHECK(limit_on(alone(ComputeFormat::fp32, DType::fp32, Form::chunk), "rms_ratio") < 1e-5);
  CHECK(limit_on(alone(ComputeFormat::fp64, DType::fp64, Form::chunk), "rms_ratio") < 1e-13);
  CHECK(limit_on(alone(ComputeFormat::fp32, DType::fp32, Form::chunk), "nonfinite") == 0);
}

TEST_CASE("the limits of chunk forms follow what the sums of gates lose, those of recurrences do not",
          "[limits]") {
  for (const double lost : {10.0, 1e4, 1e6}) {
    const auto limit = [&](Form form) {
      return limit_on(
          derived_limits({ComputeFormat::fp32, DType::fp32, units_lost(ComputeFormat::fp32, form, 4, lost)}),
          "scaled_ulp");
    };
    CHECK(limit(Form::recurrence) == 19);
    CHECK(limit(Form::chunk) == 33 + lost);
    CHECK(limit(Form::unknown) == 35 + lost);
  }
}

TEST_CASE("the whole is judged by the mean of its units, the worst element by the most", "[limits]") {
  const std::vector<Limit> limits = derived_limits({ComputeFormat::fp32, DType::fp32, {15, 99}});
  CHECK(limit_on(limits, "rms_ratio") == 16 * 0x1p-24);
  CHECK(limit_on(limits, "scaled_ulp") == 100);
}

TEST_CASE("what is lost altogether has infinite limits, and no NaN", "[limits]") {
  const Computation lost{ComputeFormat::fp32, DType::fp32, HUGE_VAL};
  CHECK(limit_on(derived_limits(lost), "rms_ratio") == HUGE_VAL);
  CHECK(limit_on(derived_limits(lost, lost), "rms_ratio") == HUGE_VAL);
}

TEST_CASE("rounding on the way counts beside what cancels", "[limits]") {
  const auto rms = [](ComputeFormat compute, Condition condition) {
    return limit_on(derived_limits({compute, DType::fp32, 12, 1, condition}), "rms_ratio") - 0x1p-24;
  };
  CHECK(rms(ComputeFormat::bf16, {4, 3}) == Approx(2 * 5 * 0x1p-8));
  CHECK(rms(ComputeFormat::fp32, {1, 4}) == Approx(20 * 0x1p-24));
}

TEST_CASE("o of few channels is judged by the least of its sums", "[limits]") {
  CHECK(smallness_of_sums(1000, 1) == Approx(1000));
  CHECK(smallness_of_sums(1 << 16, 2) == Approx(256));
  CHECK(smallness_of_sums(1 << 20, 128) == Approx(1.114).epsilon(0.001));
  Computation o{ComputeFormat::fp32, DType::fp32, 18};
  const std::vector<Limit> usual = derived_limits(o);
  o.smallness = 10;
  const std::vector<Limit> few = derived_limits(o);
  CHECK(limit_on(few, "scaled_ulp") == 1 + 10 * (limit_on(usual, "scaled_ulp") - 1));
  CHECK(limit_on(few, "rms_ratio") == limit_on(usual, "rms_ratio"));
}

TEST_CASE("what cancels widens rms_ratio, and nothing else", "[limits]") {
  const auto limit = [&](ComputeFormat compute, double cancellation, double excess, const char* metric) {
    return limit_on(derived_limits({compute, DType::fp32, 42, 1, {cancellation, 0}, excess}), metric);
  };
  const double step = 0x1p-24;
  for (const ComputeFormat compute : {ComputeFormat::fp32, ComputeFormat::bf16}) {
    const double usual = limit(compute, 1, 0, "rms_ratio") - step;
    CHECK(limit(compute, 5, 0, "rms_ratio") == Approx(5 * usual + step));
    CHECK(limit(compute, 5, 100, "scaled_ulp") == limit(compute, 1, 0, "scaled_ulp"));
    CHECK(limit(compute, HUGE_VAL, 0, "rms_ratio") == HUGE_VAL);  // nobody knows how much cancels
  }
  // Sums behind 16-bit operands are in fp32.
  for (const ComputeFormat compute : {ComputeFormat::fp32, ComputeFormat::tf32, ComputeFormat::bf16})
    CHECK(limit(compute, 1, 1e5, "rms_ratio") == Approx(limit(compute, 1, 0, "rms_ratio") + 1e5 * step));
}

TEST_CASE("a ratio of sizes is one of what is finite, whatever the range", "[limits]") {
  const std::vector<double> small{3, -4}, large{-30, 40}, none{0, 0}, tiny{3e-200, -4e-200};
  CHECK(ratio_of_sizes(large, small) == Approx(10));
  CHECK(ratio_of_sizes(small, tiny) == Approx(1e200));
  CHECK(ratio_of_sizes({}, small) == 0);
  CHECK(ratio_of_sizes(none, small) == 0);
  CHECK(ratio_of_sizes(small, none) == HUGE_VAL);
  const std::vector<double> poisoned{NAN, 5}, infinite{1, HUGE_VAL};
  CHECK(ratio_of_sizes(poisoned, small) == Approx(1.25));
  CHECK(ratio_of_sizes(small, poisoned) == Approx(0.8));
  CHECK(ratio_of_sizes(infinite, small) == HUGE_VAL);
  std::vector<double> many(3000, 2.0), others(3000, 1.0);
  CHECK(ratio_of_sizes(many, others) == 2);
  many[1500] = NAN, others[10] = HUGE_VAL;
  CHECK(ratio_of_sizes(many, others) == 2);
  many[2900] = 2e200;
  CHECK(ratio_of_sizes(many, others) == Approx(2e200 / std::sqrt(2998.0)));
}

TEST_CASE("against another answer its own error is allowed for", "[limits]") {
  const Computation ours{ComputeFormat::fp64, DType::fp64, 18}, theirs{ComputeFormat::bf16, DType::bf16, 16};
  const double against_truth = limit_on(derived_limits(ours), "rms_ratio");
  const double against_them = limit_on(derived_limits(ours, theirs), "rms_ratio");
  CHECK(against_truth < 1e-13);
  CHECK(against_them == Approx(3 * 0x1p-8).epsilon(0.01));
}

TEST_CASE("requested limits replace derived ones metric by metric", "[limits]") {
  const std::vector<Limit> derived{
      {"nonfinite", 0, "derived"}, {"scaled_ulp", 17, "derived"}, {"rms_ratio", 1e-6, "derived"}};
  const std::vector<Limit> limits = overlaid(
      derived,
      {{"command line",
        {parse_limit("scaled_ulp=8"), parse_limit("rms_ratio=none"), parse_limit("max_ulp=exact")}}});
  CHECK(limit_on(limits, "scaled_ulp") == 8);
  CHECK(std::isnan(limit_on(limits, "rms_ratio")));
  CHECK(limit_on(limits, "max_ulp") == 0);
  CHECK(limit_on(limits, "nonfinite") == 0);
}

TEST_CASE("limits that do not exist or are no numbers are refused", "[limits]") {
  CHECK_THROWS_WITH(parse_limit("scaled_upl=3"), ContainsSubstring("did you mean 'scaled_ulp'?"));
  CHECK_THROWS_WITH(parse_limit("scaled_ulp"), ContainsSubstring("METRIC=VALUE"));
  CHECK_THROWS_WITH(parse_limit("scaled_ulp=-1"), ContainsSubstring("number >= 0"));
  CHECK_THROWS_WITH(parse_limit("scaled_ulp=nan"), ContainsSubstring("number >= 0"));
  CHECK_THROWS_WITH(parse_limit("scaled_ulp=inf"), ContainsSubstring("number >= 0"));  // that is none
  CHECK_THROWS_WITH(parse_limit("scaled_ulp=3x"), ContainsSubstring("number >= 0"));
}

TEST_CASE("a limit finer than a step of the element type is refused unless it says exact", "[limits]") {
  const auto refuses = [](const char* text, DType dtype) {
    try {
      refuse_limits_finer_than_storage({parse_limit(text)}, 0, 0, dtype);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::usage;
    }
    return false;
  };
  // A correctly rounded answer is 0 steps from the oracle rounded once.
  CHECK_FALSE(refuses("max_ulp=0", DType::bf16));
  CHECK_FALSE(refuses("ulp_p99=0", DType::bf16));
  CHECK(refuses("ulp_error=0.4", DType::bf16));
  CHECK_FALSE(refuses("max_ulp=exact", DType::bf16));
  CHECK_FALSE(refuses("max_ulp=1", DType::bf16));
  CHECK(refuses("scaled_ulp=0.3", DType::fp32));
  CHECK(refuses("max_rel=1e-3", DType::bf16));
  CHECK_FALSE(refuses("max_rel=1e-3", DType::fp32));
  CHECK(refuses("rms_ratio=1e-5", DType::bf16));
  CHECK_FALSE(refuses("nonfinite=0", DType::bf16));
  CHECK_THROWS_WITH(refuse_limits_finer_than_storage({}, 0, 1e-10, DType::fp32), ContainsSubstring("--rtol"));
  CHECK_NOTHROW(refuse_limits_finer_than_storage({}, 1e-6, 1e-10, DType::fp32));
}

}  // namespace verdict_tests

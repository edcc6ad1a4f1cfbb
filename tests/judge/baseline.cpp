// What counts as worse than a baseline, and the file it is kept in.
#include "judge/baseline.hpp"

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "judge/measures/metrics.hpp"
#include "support/catch.hpp"

namespace baseline_tests {

using namespace kda_check;
using namespace kda_check::judge;
using numeric::DType;

namespace {

ReadingKey key_of(const std::string& metric, const std::string& fixture = "f") {
  return {fixture, "chunk", "fp32", "oracle", "o", metric, "contraction=fused"};
}

Readings read(double scaled_ulp, bool sound = true) {
  return {{key_of("scaled_ulp"), {scaled_ulp, DType::fp32, sound}}};
}

}  // namespace

TEST_CASE("worse is beyond slack times the baseline and one step", "[explain]") {
  CHECK_FALSE(is_worse("max_ulp", 3, 7, DType::fp32));
  CHECK(is_worse("max_ulp", 3, 8, DType::fp32));
  CHECK_FALSE(is_worse("max_ulp", 0, 1, DType::fp32));
  CHECK(is_worse("nonfinite", 0, 1, DType::fp32));
  CHECK_FALSE(is_worse("scaled_ulp", 1, 2, DType::fp32));
  CHECK(is_worse("scaled_ulp", 1, 2.01, DType::fp32));
  // A quarter of the roundoff of the element type: 2^-10 for bf16, 2^-26 for fp32.
  CHECK_FALSE(is_worse("rms_ratio", 0, 9e-4, DType::bf16));
  CHECK(is_worse("rms_ratio", 0, 9e-4, DType::fp32));
  CHECK(is_worse("rms_ratio", 1, std::nan(""), DType::fp32));
  CHECK(is_worse("max_ulp", 5, std::numeric_limits<double>::infinity(), DType::fp32));
}

TEST_CASE("a baseline survives being written, sorted and to the byte", "[explain]") {
  const Baseline baseline{{key_of("scaled_ulp", "b"), as_written(1.23456789)},
                          {key_of("max_ulp", "a"), 28905},
                          {key_of("rms_ratio", "b"), as_written(1.0 / 3e7)}};
  const std::string text = baseline_text(baseline);
  CHECK(text ==
        "fixture\tvariant\tdtype\tagainst\ttensor\tmetric\tvalue\tarithmetic\n"
        "a\tchunk\tfp32\toracle\to\tmax_ulp\t28905\tcontraction=fused\n"
        "b\tchunk\tfp32\toracle\to\trms_ratio\t3.33333e-08\tcontraction=fused\n"
        "b\tchunk\tfp32\toracle\to\tscaled_ulp\t1.23457\tcontraction=fused\n");
  CHECK(parse_baseline(text, "t.tsv") == baseline);
}

TEST_CASE("a malformed baseline is refused with its line", "[explain]") {
  const std::string header = "fixture\tvariant\tdtype\tagainst\ttensor\tmetric\tvalue\tarithmetic\n";
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_baseline(text, "t.tsv");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::input);
      return error.what();
    }
    return "accepted";
  };
  const std::string row = "f\tchunk\tfp32\toracle\to\tmax_ulp\t3\t-\n";
  CHECK(refusal(header + row) == "accepted");
  CHECK_THAT(refusal(""), ContainsSubstring("t.tsv"));
  CHECK_THAT(refusal("<<<<<<< HEAD\n" + header), ContainsSubstring("t.tsv:1"));
  CHECK_THAT(refusal(header + row + "f\tchunk\n"), ContainsSubstring("t.tsv:3"));
  CHECK_THAT(refusal(header + row + row), ContainsSubstring("twice (t.tsv:3)"));
  CHECK_THAT(refusal(header + "\n"), ContainsSubstring("t.tsv:2"));
  for (const char* const value : {"x", "-1", "nan", "inf", "3 "})
    CHECK_THAT(refusal(header + "f\tchunk\tfp32\toracle\to\tmax_ulp\t" + value + "\t-\n"),
               ContainsSubstring("no value >= 0 (t.tsv:2)"));
  CHECK_THAT(refusal(header + "f\xff\tchunk\tfp32\toracle\to\tmax_ulp\t3\t-\n"),
             ContainsSubstring("t.tsv:2"));
  CHECK_THAT(refusal(header + "f\tchunk\tfp32\toracle\to\tmax_upl\t3\t-\n"),
             ContainsSubstring("did you mean 'max_ulp'"));
}

TEST_CASE("loose, new and stale rows are found", "[explain]") {
  Readings readings = read(1);
  CHECK(worsened({{key_of("scaled_ulp"), 0.3}}, readings).size() == 1);
  CHECK(findings({{key_of("scaled_ulp"), 4.5}}, readings).loose.empty());
  CHECK(findings({{key_of("scaled_ulp"), 4.6}}, readings).loose.size() == 1);
  CHECK(findings({}, readings).fresh.size() == 1);
  CHECK(findings({}, read(1, false)).fresh.empty());
  const Baseline other{{key_of("scaled_ulp", "gone"), 1}};
  CHECK(findings(other, readings).stale.size() == 1);
  CHECK(findings(other, readings).met == 0);
  // A row of a GPU that is not here means nothing here.
  ReadingKey gpu = key_of("scaled_ulp");
  gpu.variant = "gpu-chunk@NVIDIA H100";
  CHECK(findings({{gpu, 1}}, readings).stale.empty());
  // A recorded answer is in its file on every machine, whatever its name.
  ReadingKey recorded = key_of("scaled_ulp");
  recorded.variant = "expected/mine@v2";
  CHECK(findings({{recorded, 1}}, readings).stale.size() == 1);
  CHECK(updated({{recorded, 1}}, readings, Ratchet::better, true).count(recorded) == 0);
}

TEST_CASE("an update only lowers rows, unless it is told to raise them", "[explain]") {
  const ReadingKey key = key_of("scaled_ulp");
  CHECK(updated({{key, 2}}, read(1), Ratchet::better, true).at(key) == 1);
  CHECK(updated({{key, 2}}, read(9), Ratchet::better, true).at(key) == 2);
  CHECK(updated({{key, 2}}, read(9), Ratchet::worse, true).at(key) == 9);
  CHECK(updated({{key, 2}}, read(2.5), Ratchet::worse, true).at(key) == 2);  // within the slack
  CHECK(updated({{key, 2}}, read(1, false), Ratchet::worse, true).at(key) == 2);
  CHECK(updated({}, read(1, false), Ratchet::better, true).empty());
  CHECK(updated({}, read(1), Ratchet::better, true).at(key) == 1);
}

TEST_CASE("an update drops stale rows of what was run, and no others", "[explain]") {
  const Baseline baseline{
      {key_of("scaled_ulp"), 1}, {key_of("max_ulp"), 1}, {key_of("max_ulp", "elsewhere"), 1}};
  const Baseline after = updated(baseline, read(1), Ratchet::better, true);
  CHECK(after.count(key_of("max_ulp")) == 0);
  CHECK(after.count(key_of("max_ulp", "elsewhere")) == 1);
  CHECK(updated(baseline, read(1), Ratchet::better, false) == baseline);
}

}  // namespace baseline_tests

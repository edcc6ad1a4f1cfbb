#include "report/writers.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "support/catch.hpp"

using namespace kda_check;
using namespace kda_check::report;
using compare::Verdict;

namespace {

TensorResult tensor_result(Verdict verdict) {
  TensorResult tensor;
  tensor.name = "o";
  tensor.shape = {1, 64, 1, 64};
  tensor.dtype = "fp32";
  tensor.verdict = verdict;
  tensor.metrics = {{"max_ulp", 3},        {"scaled_ulp", 1.25}, {"max_abs", 1e-7},
                    {"max_rel", HUGE_VAL}, {"rms_ratio", 5e-8},  {"nonfinite", 0}};
  tensor.limits = {{"nonfinite", 0, "derived"}, {"scaled_ulp", 16, "derived"}};
  tensor.worst =
      PointResult{{0, 41, 0, 17}, "o[b=0 t=41 h=0 v=17]", 0.1, 0.2, 1, "0x1.9p-4", "0x1.9p-3", 1.25};
  tensor.points = {*tensor.worst};
  if (verdict == Verdict::fail) tensor.reason = "scaled_ulp 20 > 16";
  return tensor;
}

Result result_with(std::vector<Verdict> verdicts) {
  Result result;
  result.command = "run";
  result.argv = {"run", "f.h5"};
  result.oracle = "double-double";
  result.fixtures = {{"f", "f.h5", "B=1 T=64 H=1 K=64 V=64", "fp32 gate=none", {"a note"}}};
  for (const Verdict verdict : verdicts) {
    CaseResult item;
    item.fixture = "f", item.path = "f.h5", item.variant = "recurrent", item.dtype = item.compute = "fp32",
    item.device = "cpu";
    item.pass = "forward", item.against = "oracle", item.verdict = verdict;
    if (verdict != Verdict::skipped) item.tensors = {tensor_result(verdict)};
    result.cases.push_back(item);
  }
  return result;
}

}  // namespace

TEST_CASE("the exit code is that of the worst thing that happened", "[report]") {
  CHECK(result_with({Verdict::pass}).exit_code() == 0);
  CHECK(result_with({Verdict::pass, Verdict::skipped}).exit_code() == 0);
  CHECK(result_with({Verdict::pass, Verdict::fail}).exit_code() == 1);
  CHECK(result_with({Verdict::pass, Verdict::inconclusive}).exit_code() == 1);
  CHECK(result_with({Verdict::skipped}).exit_code() == 1);  // nothing ran is not a pass
  CHECK(result_with({}).exit_code() == 1);
  Result with_errors = result_with({Verdict::fail});
  with_errors.errors = {{"x", 3}};
  CHECK(with_errors.exit_code() == 3);
  with_errors.errors.push_back({"y", 4});
  CHECK(with_errors.exit_code() == 4);
}

TEST_CASE("recorded answers that pass do not make up for variants of which none ran", "[report]") {
  Result result = result_with({Verdict::skipped, Verdict::pass});
  result.cases[0].against.clear();
  result.cases[1].recorded = true;
  CHECK(result.exit_code() == 1);
  for (const auto write : {write_text, write_junit, write_html, write_summary, write_github})
    CHECK_THAT(write(result, {}), ContainsSubstring("no variant ran"));
  result.cases[1].recorded = false;  // one of two is missing: a line, and --require for those who need it
  CHECK(result.exit_code() == 0);
}

TEST_CASE("JSON has the fields scripts rely on", "[report]") {
  const auto document = nlohmann::json::parse(write_json(result_with({Verdict::pass, Verdict::fail}), {}));
  CHECK(document["schema_version"] == 1);
  CHECK(document["request"]["argv"] == nlohmann::json::array({"run", "f.h5"}));
  CHECK(document["summary"]["passed"] == 1);
  CHECK(document["summary"]["failed"] == 1);
  CHECK(document["summary"]["inconclusive"] == 0);
  CHECK(document["summary"]["skipped"] == 0);
  const auto& item = document["cases"][0];
  for (const char* const field : {"fixture", "variant", "dtype", "device", "pass", "arithmetic", "against",
                                  "verdict", "reason", "tensors"})
    CHECK(item.contains(field));
  CHECK(item["verdict"] == "pass");
  const auto& tensor = item["tensors"][0];
  CHECK(tensor["shape"] == nlohmann::json::array({1, 64, 1, 64}));
  CHECK(tensor["metrics"]["max_ulp"] == 3);
  CHECK(tensor["metrics"]["max_rel"] == "inf");  // a number that is not finite is a string
  CHECK(tensor["limits"][1]["metric"] == "scaled_ulp");
  CHECK(tensor["limits"][1]["source"] == "derived");
  CHECK(tensor["worst"]["index"] == nlohmann::json::array({0, 41, 0, 17}));
  CHECK(tensor["worst"]["got_hex"] == "0x1.9p-4");
}

TEST_CASE("JSON survives names that are no UTF-8", "[report]") {
  Result result = result_with({Verdict::pass});
  result.fixtures[0].name = "\xff\xfe";
  CHECK(nlohmann::json::accept(write_json(result, {})));
}

TEST_CASE("the text has a row for a pass as for a failure, and the points of the failure", "[report]") {
  const std::string text = write_text(result_with({Verdict::pass, Verdict::fail}), {});
  CHECK_THAT(text, ContainsSubstring("PASS"));
  CHECK_THAT(text, ContainsSubstring("FAIL"));
  CHECK_THAT(text, ContainsSubstring("scaled_ulp<=16"));
  CHECK_THAT(text, ContainsSubstring("o[b=0 t=41 h=0 v=17]"));
  CHECK_THAT(text, ContainsSubstring("scaled_ulp 20 > 16"));
  CHECK_THAT(text, ContainsSubstring("0x1.9p-4"));
  CHECK_THAT(text, ContainsSubstring("note: a note"));
  CHECK_THAT(text,
             ContainsSubstring(
                 "1 fixture, 2 comparisons of 2 tensors: 1 passed, 1 failed, 0 inconclusive, 0 skipped"));
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("quiet text leaves out what passed", "[report]") {
  const std::string clean = write_text(result_with({Verdict::pass}), {Detail::quiet, false});
  CHECK(clean == "1 fixture, 1 comparisons of 1 tensors: 1 passed, 0 failed, 0 inconclusive, 0 skipped\n");
  const std::string failed = write_text(result_with({Verdict::pass, Verdict::fail}), {Detail::quiet, false});
  CHECK(failed.find("PASS") == std::string::npos);
  CHECK_THAT(failed, ContainsSubstring("FAIL"));
}

TEST_CASE("colour never carries meaning alone", "[report]") {
  const std::string plain = write_text(result_with({Verdict::pass, Verdict::fail}), {});
  std::string colored = write_text(result_with({Verdict::pass, Verdict::fail}), {Detail::normal, true});
  CHECK(colored.find("\x1b[31mFAIL") != std::string::npos);
  for (std::size_t at; (at = colored.find('\x1b')) != std::string::npos;)
    colored.erase(at, colored.find('m', at) - at + 1);
  CHECK(colored == plain);
}

TEST_CASE("an unknown report format is refused with a suggestion", "[report]") {
  CHECK_THROWS_WITH(writer_named("jsn"), ContainsSubstring("did you mean 'json'?"));
}

TEST_CASE("text from a file cannot steer the terminal or add lines", "[report]") {
  Result hostile = result_with({Verdict::fail}), harmless = result_with({Verdict::fail});
  harmless.cases[0].arithmetic = "contraction=fused";
  const std::string evil = "e\x1b[31m\nvil\x7f\xc2\x9b";
  hostile.fixtures[0].name = hostile.fixtures[0].notes[0] = evil;
  hostile.cases[0].variant = hostile.cases[0].against = hostile.cases[0].arithmetic = evil;
  const std::string text = write_text(hostile, {Detail::verbose, false});
  CHECK(std::count(text.begin(), text.end(), '\n') ==
        std::count_if(text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }));
  const std::string usual = write_text(harmless, {Detail::verbose, false});
  CHECK(std::count(text.begin(), text.end(), '\n') == std::count(usual.begin(), usual.end(), '\n'));
  CHECK_THAT(text, ContainsSubstring("e\\x1b[31m\\x0avil\\x7f\\xc2\\x9b"));
  CHECK(nlohmann::json::parse(write_json(hostile, {}))["cases"][0]["variant"] == evil);
}

TEST_CASE("a case that fails beside its tensors has a line of its own, also when quiet", "[report]") {
  Result result = result_with({Verdict::pass});
  result.cases[0].verdict = Verdict::fail;
  result.cases[0].reason = "options differ: scale";
  for (const Detail detail : {Detail::quiet, Detail::normal})
    CHECK_THAT(write_text(result, {detail, false}),
               ContainsSubstring("FAIL recurrent: options differ: scale"));
}

TEST_CASE("a variant that could not run is listed as not run", "[report]") {
  Result result = result_with({Verdict::skipped});
  result.cases[0].against.clear();
  result.cases[0].reason = "no device";
  CHECK_THAT(write_text(result, {}), ContainsSubstring("  not run\n  SKIPPED recurrent fp32: no device"));
}

TEST_CASE("no distance is printed for what is not a number", "[report]") {
  Result result = result_with({Verdict::fail});
  CHECK_THAT(write_text(result, {}), ContainsSubstring("off by 1.25 scaled ulp"));
  result.cases[0].tensors[0].points[0].got = std::nan("");
  CHECK(write_text(result, {}).find("off by") == std::string::npos);
}

#include "report/writers.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "support/catch.hpp"
#include "support/report_documents.hpp"

namespace writers_tests {

using namespace kda_check;
using namespace kda_check::report;
using namespace kda_check::test;
using judge::Verdict;

TEST_CASE("JSON has the fields scripts rely on", "[report]") {
  const auto document = nlohmann::json::parse(write_json(document_with({Verdict::pass, Verdict::fail}), {}));
  CHECK(document["schema_version"] == 2);
  CHECK(document["request"]["argv"] == nlohmann::json::array({"run", "f.h5"}));
  CHECK(document["summary"]["passed"] == 1);
  CHECK(document["summary"]["failed"] == 1);
  CHECK(document["summary"]["inconclusive"] == 0);
  CHECK(document["summary"]["skipped"] == 0);
  const auto& item = document["cases"][0];
  for (const char* const field :
       {"number", "place", "fixture", "path", "variant", "recorded", "dtype", "device", "pass", "arithmetic",
        "compute", "against", "oracle", "verdict", "reason", "tensors", "repro"})
    CHECK(item.contains(field));
  CHECK(item["number"] == 1);
  CHECK(item["verdict"] == "pass");
  const auto& tensor = item["tensors"][0];
  CHECK(tensor["shape"] == nlohmann::json::array({1, 48, 2, 64}));
  CHECK(tensor["metrics"]["max_ulp"] == 3);
  CHECK(tensor["metrics"]["max_rel"] == "inf");  // a number that is not finite is a string
  CHECK(tensor["limits"][1]["metric"] == "scaled_ulp");
  CHECK(tensor["limits"][1]["source"] == "derived");
  CHECK(tensor["worst"]["index"] == nlohmann::json::array({0, 41, 0, 17}));
  CHECK(tensor["worst"]["got_hex"] == "0x1.9p-4");
}

TEST_CASE("recorded answers that pass do not make up for variants of which none ran", "[report]") {
  Document result = document_with({Verdict::skipped, Verdict::pass});
  result.cases[0].against.clear();
  result.cases[1].role = Role::recorded;
  CHECK(exit_code(result) == 1);
  for (const auto write : {write_text, write_junit, write_html, write_summary, write_github})
    CHECK_THAT(write(result, {}), ContainsSubstring("no variant ran"));
  result.cases[1].role = Role::variant;  // one of two is missing: a line, and --require for those who need it
  CHECK(exit_code(result) == 0);
}

TEST_CASE("JSON survives names that are no UTF-8", "[report]") {
  Document result = document_with({Verdict::pass});
  result.problems[0].name = "\xff\xfe";
  CHECK(nlohmann::json::accept(write_json(result, {})));
}

TEST_CASE("the text has a row for a pass as for a failure, and the points of the failure", "[report]") {
  const Document document = document_with({Verdict::pass, Verdict::fail});
  const std::string text = write_text(document, {});
  CHECK_THAT(text, ContainsSubstring("\n  PASS "));
  CHECK_THAT(text, ContainsSubstring("\n  FAIL "));
  CHECK_THAT(text, ContainsSubstring("scaled_ulp 7.7 %"));  // of its limit
  CHECK_THAT(text, ContainsSubstring("o[b=0 t=41 h=0 v=17]"));
  CHECK_THAT(text, ContainsSubstring("scaled_ulp 20 > 16"));
  CHECK_THAT(text, ContainsSubstring("0x1.9p-4"));
  CHECK_THAT(text, ContainsSubstring("note: a note"));
  CHECK_THAT(text, ContainsSubstring("repro: kda-check run f.h5 --variant recurrent\n"));
  CHECK_THAT(text, ContainsSubstring("FAIL: 1 fixture, 2 comparisons of 2 tensors: 1 passed, 1 failed, "
                                     "0 inconclusive, 0 skipped\n"));
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find("scaled_ulp<=16") == std::string::npos);
  const std::string all = write_text(document, {Detail::verbose});
  CHECK_THAT(all, ContainsSubstring("scaled_ulp<=16") && ContainsSubstring("max_rel=inf"));
}

TEST_CASE("quiet text leaves out what passed", "[report]") {
  const std::string clean = write_text(document_with({Verdict::pass}), {Detail::quiet});
  CHECK(clean ==
        "PASS: 1 fixture, 1 comparison of 1 tensor: 1 passed, 0 failed, 0 inconclusive, 0 skipped\n");
  const std::string failed = write_text(document_with({Verdict::pass, Verdict::fail}), {Detail::quiet});
  CHECK(failed.find("PASS") == std::string::npos);
  CHECK_THAT(failed, ContainsSubstring("FAIL"));
  // Why a program failed is said, quiet or not.
  Document crashed = document_with({Verdict::fail});
  crashed.cases[0].tensors.clear(), crashed.cases[0].role = Role::external;
  crashed.cases[0].reason = "exit status 1; it said: no CUDA";
  CHECK_THAT(write_text(crashed, {Detail::quiet}), ContainsSubstring("exit status 1; it said: no CUDA"));
}

TEST_CASE("what a user brought comes first, and ours is one line while it passes", "[report]") {
  Document document = document_with({Verdict::pass, Verdict::pass, Verdict::pass});
  document.cases[1].variant = "naive", document.cases[1].against = "mine";
  document.cases[2].variant = "mine", document.cases[2].role = Role::recorded;
  const std::string text = write_text(document, {});
  CHECK_THAT(text, ContainsSubstring(
                       "PASS  ours: recurrent, naive against the oracle, mine (2 rows; -v lists them)"));
  CHECK(text.find("  PASS     mine") < text.find("ours:"));
  CHECK(text.find("PASS     recurrent") == std::string::npos);
  const std::string all = write_text(document, {Detail::verbose});
  CHECK(all.find("ours:") == std::string::npos);
  CHECK(all.find("PASS     mine") < all.find("PASS     recurrent"));
  // One of ours that does not pass is not folded away.
  document.cases[1].verdict = document.cases[1].tensors[0].verdict = Verdict::fail;
  CHECK_THAT(write_text(document, {}), ContainsSubstring("FAIL     naive"));
}

TEST_CASE("a limit that is not derived has a star, and the end says whose it is", "[report]") {
  Document document = document_with({Verdict::pass});
  CHECK(write_text(document, {}).find("* limit from") == std::string::npos);
  document.cases[0].tensors[0].limits[1].source = "cases/tolerances.toml:12";
  document.cases[0].tensors[0].limits.push_back({"max_abs", 1e-3, "command line"});
  const std::string text = write_text(document, {});
  CHECK_THAT(text, ContainsSubstring("scaled_ulp 7.7 %*"));
  CHECK_THAT(text,
             ContainsSubstring("* limit from cases/tolerances.toml:12, the command line; the others are "
                               "derived from arithmetic and inputs\n"));
}

TEST_CASE("failures are said once more at the end where there are several, each a line", "[report]") {
  const std::string text =
      write_text(document_with({Verdict::pass, Verdict::inconclusive, Verdict::fail}), {});
  const std::size_t end = text.find("FAIL f.h5: recurrent fp32 o against oracle: scaled_ulp 20 > 16\n");
  REQUIRE(end != std::string::npos);
  CHECK(text.find("INCONCLUSIVE f.h5: recurrent fp32 o against oracle: ") > end);
  const std::string many = write_text(document_with(std::vector<Verdict>(30, Verdict::fail)), {});
  CHECK_THAT(many, ContainsSubstring("... and 10 more\n"));
}

TEST_CASE("an interrupted run says so, and is no pass in any format", "[report]") {
  Document document = document_with({Verdict::pass});
  document.signal = 15;
  CHECK(exit_code(document) == 128 + 15);
  CHECK_THAT(write_text(document, {}), ContainsSubstring("INTERRUPTED: 1 fixture"));
  const auto json = nlohmann::json::parse(write_json(document, {}));
  CHECK(json["summary"]["outcome"] == "interrupted");
  CHECK(json["interrupted"]["signal"] == 15);
  for (const auto write : {write_junit, write_html, write_summary, write_github})
    CHECK_THAT(write(document, {}), ContainsSubstring("interrupted: what is missing was not compared"));
}

TEST_CASE("colour never carries meaning alone", "[report]") {
  const std::string plain = write_text(document_with({Verdict::pass, Verdict::fail}), {});
  std::string colored = write_text(document_with({Verdict::pass, Verdict::fail}), {Detail::normal, true});
  CHECK(colored.find("\x1b[31mFAIL") != std::string::npos);
  for (std::size_t at; (at = colored.find('\x1b')) != std::string::npos;)
    colored.erase(at, colored.find('m', at) - at + 1);
  CHECK(colored == plain);
}

TEST_CASE("an unknown report format is refused with a suggestion", "[report]") {
  CHECK_THROWS_WITH(writer_named("jsn"), ContainsSubstring("did you mean 'json'?"));
}

TEST_CASE("text from a file cannot steer the terminal or add lines", "[report]") {
  Document hostile = document_with({Verdict::fail}), harmless = document_with({Verdict::fail});
  harmless.cases[0].arithmetic = "contraction=fused";
  const std::string evil = "e\x1b[31m\nvil\x7f\xc2\x9b";
  hostile.problems[0].name = hostile.problems[0].notes[0] = evil;
  hostile.cases[0].variant = hostile.cases[0].against = hostile.cases[0].arithmetic = evil;
  const std::string text = write_text(hostile, {Detail::verbose});
  CHECK(std::count(text.begin(), text.end(), '\n') ==
        std::count_if(text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }));
  const std::string usual = write_text(harmless, {Detail::verbose});
  CHECK(std::count(text.begin(), text.end(), '\n') == std::count(usual.begin(), usual.end(), '\n'));
  CHECK_THAT(text, ContainsSubstring("e\\x1b[31m\\x0avil\\x7f\\xc2\\x9b"));
  CHECK(nlohmann::json::parse(write_json(hostile, {}))["cases"][0]["variant"] == evil);
}

TEST_CASE("a case that fails beside its tensors has a line of its own, also when quiet", "[report]") {
  Document result = document_with({Verdict::pass});
  result.cases[0].verdict = Verdict::fail;
  result.cases[0].reason = "options differ: scale";
  for (const Detail detail : {Detail::quiet, Detail::normal})
    CHECK_THAT(write_text(result, {detail}), ContainsSubstring("FAIL recurrent: options differ: scale"));
}

TEST_CASE("a variant that could not run is listed as not run", "[report]") {
  Document result = document_with({Verdict::skipped});
  result.cases[0].against.clear();
  result.cases[0].reason = "no device";
  CHECK_THAT(write_text(result, {}), ContainsSubstring("  not run\n  SKIPPED recurrent fp32: no device"));
}

TEST_CASE("no distance is printed for what is not a number", "[report]") {
  Document result = document_with({Verdict::fail});
  CHECK_THAT(write_text(result, {}), ContainsSubstring("off by 1.25 scaled ulp"));
  result.cases[0].tensors[0].points[0].got = std::nan("");
  CHECK(write_text(result, {}).find("off by") == std::string::npos);
}

}  // namespace writers_tests

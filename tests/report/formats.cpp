// The reports other programs read and the page: well-formed whatever names hold, the same bytes twice, and no
// green where nothing passed.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <regex>
#include <sstream>

#include "report/markup.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/report_documents.hpp"

namespace formats_tests {

using namespace kda_check;
using namespace kda_check::report;
using namespace kda_check::test;
using judge::Verdict;

namespace {

const std::vector<Verdict> every_verdict{Verdict::pass, Verdict::fail, Verdict::inconclusive,
                                         Verdict::skipped};

/// Every text that can come from a file, and some that can not.
Document hostile() {
  Document result = document_with(every_verdict);
  const std::string evil =
      "<b>&amp;\"'>]]>--> | `x` \x1b[31m\r\n::error::%0A\xff\xc3\x28 \xef\xbf\xbe \xe2\x80\xae \xc3\xa9";
  ProblemResult& problem = result.problems[0];
  problem.name = problem.path = problem.shape = problem.options = problem.notes[0] = evil;
  for (CaseResult& item : result.cases) {
    item.fixture = item.path = item.variant = item.dtype = item.compute = item.device = item.arithmetic =
        item.against = item.reason = item.place = item.repro = item.oracle = item.trials = evil;
    for (TensorResult& tensor : item.tensors) {
      tensor.name = tensor.reason = tensor.worst_window = tensor.worst_head = evil;
      tensor.worst->place = tensor.points[0].place = tensor.points[0].got_hex = evil;
      tensor.limits[0].source = evil;
    }
  }
  result.failures = {{evil, 3, evil}};
  result.argv = {evil};
  result.nothing_to_do = evil;
  return result;
}

std::size_t count(const pugi::xml_node& node, const char* query) { return node.select_nodes(query).size(); }

std::size_t occurrences(const std::string& text, std::string_view word) {
  std::size_t total = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++total;
  return total;
}

constexpr const char* formats[] = {"junit", "github", "summary", "html"};

}  // namespace

TEST_CASE("no line of text is a command of a workflow, whatever files hold", "[report]") {
  Document result = hostile();
  for (const std::string command : {"::stop-commands::x", "##[stop-commands]x"}) {
    ProblemResult& problem = result.problems[0];
    problem.name = problem.path = problem.shape = problem.options = problem.notes[0] = command;
    result.nothing_to_do = command;
    for (CaseResult& item : result.cases) {
      item.path = item.variant = item.dtype = item.reason = item.trials = command;
      for (TensorResult& tensor : item.tensors) tensor.worst_head = command;
    }
    std::istringstream text(write_text(result, {}));
    for (std::string line; std::getline(text, line);) {
      INFO(line);
      CHECK(line.substr(std::min(line.find_first_not_of(' '), line.size())).rfind("::", 0) != 0);
      CHECK(line.find("##[") == std::string::npos);
    }
  }
}

TEST_CASE("JUnit has a suite for each fixture and says of every test how it went", "[report]") {
  const pugi::xml_document document = parsed(write_junit(document_with(every_verdict), {}));
  const pugi::xml_node root = document.child("testsuites");
  REQUIRE(count(root, "testsuite") == 1);
  for (const pugi::xml_node node : {root, root.child("testsuite")}) {
    CHECK(node.attribute("tests").as_int() == 4);
    CHECK(node.attribute("failures").as_int() == 2);  // inconclusive is one
    CHECK(node.attribute("errors").as_int() == 0);
    CHECK(node.attribute("skipped").as_int() == 1);
  }
  CHECK(count(root, "testsuite/testcase") == 4);
  CHECK(count(root, "testsuite/testcase[not(*)]") == 1);
  CHECK(count(root, ".//failure[@type='fail']") == 1);
  CHECK(count(root, ".//failure[@type='inconclusive']") == 1);
  CHECK(count(root, ".//skipped[@message='no device']") == 1);
  const pugi::xml_node failure = root.select_node(".//failure").node();
  CHECK(std::string(failure.attribute("message").value()) == "scaled_ulp 20 > 16");
  CHECK_THAT(failure.text().get(), ContainsSubstring("o[b=0 t=41 h=0 v=17] got 0.1 (0x1.9p-4)"));
  CHECK_THAT(failure.text().get(), ContainsSubstring("limit scaled_ulp <= 16 (derived)"));
  // Viewers merge tests of one name.
  std::map<std::string, int> names;
  for (const pugi::xpath_node& test : root.select_nodes(".//testcase"))
    ++names[test.node().attribute("name").value()];
  CHECK(names.size() == 4);
}

TEST_CASE("JUnit counts what could not be read as errors", "[report]") {
  Document result = document_with({Verdict::pass});
  result.failures = {{"inputs/q is missing (x.h5)", 3, "x.h5"}};
  const pugi::xml_document document = parsed(write_junit(result, {}));
  CHECK(document.child("testsuites").attribute("errors").as_int() == 1);
  CHECK(count(document, "//error[@message='inputs/q is missing (x.h5)']") == 1);
}

TEST_CASE("a run in which nothing passed is a failure in every format", "[report]") {
  for (const std::vector<Verdict>& verdicts :
       {std::vector<Verdict>{}, std::vector<Verdict>{Verdict::skipped}}) {
    Document result = document_with(verdicts);
    if (verdicts.empty()) result.problems.clear();
    REQUIRE(exit_code(result) == 1);
    CHECK(parsed(write_junit(result, {})).child("testsuites").attribute("failures").as_int() == 1);
    CHECK_THAT(write_github(result, {}), ContainsSubstring("::error title=kda-check::nothing"));
    CHECK_THAT(write_summary(result, {}), ContainsSubstring("FAIL"));
    CHECK_THAT(all_text(parsed(write_html(result, {}))), ContainsSubstring("FAIL - kda-check"));
    CHECK(write_summary(result, {}).find("PASS") == std::string::npos);
    CHECK(write_html(result, {}).find("PASS") == std::string::npos);
  }
}

TEST_CASE("a case that fails beside its tensors fails in every format", "[report]") {
  Document result = document_with({Verdict::pass});
  result.cases[0].verdict = Verdict::fail;
  result.cases[0].reason = "options differ: scale";
  for (const char* const format : formats)
    CHECK_THAT(writer_named(format).write(result, {}), ContainsSubstring("options differ: scale"));
  CHECK(parsed(write_junit(result, {})).child("testsuites").attribute("failures").as_int() == 1);
}

TEST_CASE("names from files break no format", "[report]") {
  const Document result = hostile();
  const pugi::xml_document page = parsed(write_html(result, {})), junit = parsed(write_junit(result, {}));
  CHECK(count(page, "//b") == count(page, "//li/b"));
  CHECK(count(junit, "//b") == 0);
  CHECK_THAT(all_text(page),
             ContainsSubstring("<b>&amp;\"'>]]>--> | `x` \\x1b[31m\\x0d\\x0a::error::%0A\\xff\\xc3("));
  CHECK_THAT(junit.child("testsuites").child("testsuite").attribute("name").value(),
             ContainsSubstring("<b>&amp;\"'>]]>"));
  for (const char* const format : formats) {
    const std::string text = writer_named(format).write(result, {});
    CHECK_FALSE(has_control_characters(text));
    CHECK_THAT(text, ContainsSubstring("\xc3\xa9"));        // what is text stays
    CHECK(text.find("\xe2\x80\xae") == std::string::npos);  // but nothing turns the line around
  }
}

TEST_CASE("text from files gives no workflow command and no second line", "[report]") {
  const std::string text = write_github(hostile(), {});
  check_workflow_commands(text);
  CHECK(text.find("%0A") == std::string::npos);  // a % of the text is %25
  CHECK(command_message("100%\n") == "100%25\\x0a");
  CHECK(command_property("a:b,c%") == "a%3Ab%2Cc%25");
}

TEST_CASE("annotations name each failure, ten at most, and then sum up", "[report]") {
  const std::string few = write_github(document_with(every_verdict), {});
  CHECK(occurrences(
            few, "::error file=f.h5,title=FAIL f%3A recurrent fp32 o against oracle::scaled_ulp 20 > 16") ==
        1);
  CHECK(occurrences(few, "::warning ") == 1);
  CHECK_THAT(few, ContainsSubstring("::notice title=kda-check::1 fixture, 4 comparisons of 3 tensors: 1 "
                                    "passed, 1 failed, 1 inconclusive, 1 skipped"));
  const std::string many = write_github(document_with(std::vector<Verdict>(25, Verdict::fail)), {});
  CHECK(occurrences(many, "::error ") == 10);
  CHECK(occurrences(many, "\n") == 11);
  CHECK_THAT(many, ContainsSubstring("15 more are in the report"));
}

TEST_CASE("the summary shows what did not pass first, and every row folded away", "[report]") {
  const std::string text = write_summary(document_with(every_verdict), {});
  CHECK(text.starts_with("## ❌ kda-check run: FAIL\n"));
  CHECK(text.find("What did not pass") < text.find("<details>"));
  CHECK(text.find("✅ PASS") > text.find("<details>"));
  CHECK_THAT(text, ContainsSubstring("o\\[b=0 t=41 h=0 v=17\\]"));
  check_markdown_tables(write_summary(hostile(), {}));
  CHECK(write_summary(document_with({Verdict::pass}), {}).starts_with("## ✅ kda-check run: PASS\n"));
  CHECK(write_summary(document_with(std::vector<Verdict>(9000, Verdict::fail)), {}).size() < 1 << 20);
}

TEST_CASE("the page needs nothing but itself and holds the figures of the JSON", "[report]") {
  const Document result = document_with(every_verdict);
  const std::string html = write_html(result, {});
  const pugi::xml_document page = parsed(html);
  CHECK(html.starts_with("<!DOCTYPE html>\n"));
  for (const char* const word : {"http:", "https:", "<script", "<link", "@import", "url(", "src="})
    CHECK(html.find(word) == std::string::npos);
  const auto document = nlohmann::json::parse(write_json(result, {}));
  const pugi::xpath_node_set blocks = page.select_nodes("//details");
  REQUIRE(blocks.size() == 4);
  for (std::size_t i = 0; i < 3; ++i)
    for (const auto& [name, value] : document["cases"][i]["tensors"][0]["metrics"].items()) {
      const std::string query = ".//li[b='" + name + "']/data[1]";
      const std::string shown = blocks[i].node().select_node(query.c_str()).node().attribute("value").value();
      CHECK(shown == (value.is_string() ? value.get<std::string>() : shown));
      if (value.is_number()) CHECK(std::stod(shown) == value.get<double>());
    }
  // Words say what colours say, and every anchor leads somewhere.
  CHECK(count(page, "//table[@id='rows']//span[.='✗ FAIL']") == 1);
  CHECK(count(page, "//table[@id='rows']//span[.='✓ PASS']") == 1);
  CHECK(count(page, "//details[@open]") == 2);
  CHECK(count(page, "//a") == 6);
  for (const pugi::xpath_node& anchor : page.select_nodes("//a")) {
    const std::string target = anchor.node().attribute("href").value();
    CHECK(count(page, ("//*[@id='" + target.substr(1) + "']").c_str()) == 1);
  }
}

TEST_CASE("fixtures that share a name are told apart by their paths", "[report]") {
  Document result = document_with({Verdict::fail, Verdict::fail, Verdict::fail});
  const ProblemResult problem = result.problems[0];
  result.problems.clear();
  for (const char* const path : {"a/mine.h5", "b/mine.h5", "c.h5"}) {
    CaseResult& item = result.cases[result.problems.size()];
    item.path = path, item.fixture = std::string(path) == "c.h5" ? "other" : "mine";
    result.problems.push_back(problem);
    result.problems.back().path = path, result.problems.back().name = item.fixture;
  }
  const pugi::xml_document page = parsed(write_html(result, {}));
  for (const char* const where : {"//th[@class='group']", "//h3", "//li/a"})
    for (const char* const name : {"a/mine.h5", "b/mine.h5", "other"}) {
      INFO(where << ' ' << name);
      CHECK(count(page, (std::string(where) + "[starts-with(., '" + name + "')]").c_str()) == 1);
    }
  for (const char* const format : {"github", "summary"})
    for (const char* const path : {"a/mine.h5", "b/mine.h5"}) {
      INFO(format << ' ' << path);
      CHECK(occurrences(writer_named(format).write(result, {}), path) >= 2);
    }
}

TEST_CASE("the counts of every format name comparisons, and those of which a tensor is inconclusive",
          "[report]") {
  Document result = document_with({Verdict::fail, Verdict::fail, Verdict::pass});
  result.cases[1].tensors.push_back(tensor_result(Verdict::inconclusive));
  const char* const counts =
      "1 fixture, 3 comparisons of 4 tensors: 1 passed, 2 failed (in 1 of them a tensor is inconclusive), "
      "0 inconclusive, 0 skipped";
  for (const char* const format : {"text", "github", "summary", "html"}) {
    INFO(format);
    CHECK_THAT(writer_named(format).write(result, {}), ContainsSubstring(counts));
  }
}

TEST_CASE("the limit is named beside the curve of an error, not over it", "[report]") {
  Document result = document_with({Verdict::fail});
  result.cases[0].tensors[0].limits.push_back({"rms_ratio", 1e-4, "derived"});
  // The curve runs on both sides of the limit, from one edge to the other.
  std::vector<double>& growth = result.cases[0].tensors[0].profile->growth;
  for (std::size_t i = 0; i < growth.size(); ++i) growth[i] = i % 2 == 0 ? 1e-5 : 1e-3;
  const pugi::xml_document page = parsed(write_html(result, {}));
  const std::string line = page.select_node("//path[@class='line']").node().attribute("d").value();
  double lowest = 0;
  std::istringstream numbers(std::regex_replace(line, std::regex("[ML]"), " "));
  for (double x = 0, y = 0; numbers >> x >> y;) lowest = std::max(lowest, y);
  const pugi::xml_node label = page.select_node("//text[.='limit of the whole']").node();
  constexpr double height_of_letters = 11;
  CHECK(lowest > 0);
  CHECK(label.attribute("y").as_double() - height_of_letters > lowest);
}

TEST_CASE("cells of words may break between words, and figures in them do not", "[report]") {
  Document result = document_with({Verdict::fail});
  result.cases[0].tensors[0].worst->place = "o[b=0 t=41] 1e-07";
  const pugi::xml_document page = parsed(write_html(result, {}));
  const pugi::xml_node cell = page.select_node("//table[@id='rows']//tr/td[last()]").node();
  CHECK(std::string(cell.attribute("class").value()) == "wrap");
  CHECK(std::string(cell.select_node("span[@class='word']").node().text().get()) == "1e-07");
}

TEST_CASE("the page draws what is known of an error, and only that", "[report]") {
  Document result = document_with({Verdict::fail});
  CHECK(count(parsed(write_html(result, {})), "//svg") == 3);
  result.cases[0].tensors[0].profile->growth.clear();
  result.cases[0].tensors[0].profile->heat = {};
  CHECK(count(parsed(write_html(result, {})), "//svg") == 1);
  result.cases[0].tensors[0].profile->distances = {15};
  CHECK_THAT(write_html(result, {}), ContainsSubstring("No element differs."));
  CHECK(count(parsed(write_html(result, {})), "//svg") == 0);
  result.cases[0].tensors[0].profile.reset();
  CHECK(count(parsed(write_html(result, {})), "//svg") == 0);
}

TEST_CASE("drawings stay drawings when errors are zero, infinite or one alone", "[report]") {
  for (const double value : {0.0, HUGE_VAL, 1e-300, 1.0})
    for (const std::size_t windows : {std::size_t{1}, std::size_t{64}}) {
      Document result = document_with({Verdict::pass});
      ErrorProfile& drawn = *result.cases[0].tensors[0].profile;
      drawn.heat.tokens = windows, drawn.heat.heads = 2;
      drawn.growth.assign(windows, value), drawn.heat.error.assign(2 * windows, value);
      drawn.distances = {0, 1};
      const std::string html = write_html(result, {});
      const pugi::xml_document page = parsed(html);
      for (const pugi::xpath_node& path : page.select_nodes("//path")) {
        const std::string data = path.node().attribute("d").value();
        CHECK(data.find("nan") == std::string::npos);
        CHECK(data.find("inf") == std::string::npos);
      }
      CHECK(count(page, "//path[@class='cross']") == (std::isfinite(value) ? 0u : 2u));
      CHECK(count(page, "//path[@class='line']") == (value > 0 && std::isfinite(value) ? 1u : 0u));
    }
}

TEST_CASE("a page of many rows keeps the failures and a bearable size", "[report]") {
  std::vector<Verdict> verdicts(1500, Verdict::pass);
  verdicts.back() = Verdict::fail;
  const std::string html = write_html(document_with(verdicts), {});
  CHECK(html.size() < 3'000'000);
  const pugi::xml_document page = parsed(html);
  CHECK(count(page, "//table[@id='rows']/tbody/tr[td]") == 1500);
  CHECK(count(page, "//details[@open]") == 1);
  CHECK_THAT(all_text(page), ContainsSubstring("rows are in the table alone"));
}

}  // namespace formats_tests

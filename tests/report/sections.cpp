// Every kind of section in all writers: nothing is lost, nothing breaks, whatever values and words are in it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <sstream>

#include "report/markup.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/report_documents.hpp"

namespace sections_tests {

using namespace kda_check::report;
using namespace kda_check::test;

namespace {

constexpr double infinity = HUGE_VAL;
const double not_a_number = std::nan("");

/// A column of each kind, and an entry with a value of each.
Section tabular(const std::string& path = "f.h5") {
  Section section;
  section.key = "things", section.path = path, section.title = "a table of things", section.tabular = true;
  section.columns = {{"name", "what it is", Show::code},
                     {"words", {}},
                     {"count", {}, Show::count},
                     {"figure", {}, Show::figure},
                     {"share", {}, Show::share},
                     {"along", "along T", Show::along},
                     {"sentences", {}, Show::sentence},
                     {"flag", {}},
                     {"list", {}},
                     {"nothing", {}, Show::figure},
                     {"only_verbose", {}, Show::words, Detail::verbose},
                     {"only_data", {}, Show::data}};
  Entry entry;
  entry.values = {std::string("the name"),
                  std::string("some words"),
                  std::int64_t{1234567},
                  0.00123456789,
                  0.4321,
                  std::vector<double>{1e-6, 0, infinity, 1e-3},
                  std::vector<std::string>{"a first sentence", "a second one"},
                  true,
                  std::vector<std::string>{"one", "two"},
                  Value(),
                  std::string("seen with -v"),
                  std::string("data alone")};
  section.entries = {entry};
  section.notes = {"a note below"};
  return section;
}

Section paragraphs(const std::string& path = "f.h5") {
  Section section;
  section.key = "findings", section.path = path;
  section.columns = {{"answer", {}}, {"doubt", {}, Show::sentence}, {"raw", {}, Show::data}};
  Entry entry;
  entry.title = "what was found of chunk";
  entry.values = {std::string("chunk"), std::string("a doubt about it"), 0.5};
  Table axes;
  axes.key = "axes", axes.title = "by axis";
  axes.columns = {{"axis", {}}, {"value", {}, Show::code}, {"share", {}, Show::share}};
  axes.rows = {{std::string("storage"), std::string("fla"), 0.9},
               {std::string("other"), std::string(), -0.1}};
  Table heads;
  heads.key = "heads", heads.title = "all heads", heads.from = Detail::verbose;
  heads.columns = {{"head", {}, Show::count}, {"error", {}, Show::along}};
  heads.rows = {{std::int64_t{0}, std::vector<double>{1, 2}}};
  Table windows;
  windows.key = "windows", windows.by_column = true, windows.is_data = true;
  windows.columns = {{"first", {}, Show::count}, {"rms_ratio", {}, Show::figure}};
  windows.rows = {{std::int64_t{0}, 0.25}, {std::int64_t{64}, infinity}};
  entry.tables = {axes, heads, windows};
  section.entries = {entry};
  return section;
}

Entry judged(Entry entry, Verdict verdict, std::string reason) {
  entry.verdict = verdict, entry.reason = std::move(reason);
  return entry;
}

Document document_with(std::vector<Section> sections) {
  Document document;
  document.command = "explain";
  document.argv = {"explain", "f.h5"};
  document.problems = {{"f", "f.h5", "B=1 T=64", "fp32", {}}};
  document.sections = std::move(sections);
  return document;
}

/// What a reader of each format sees, the marks of the format taken away; JSON aside.
std::vector<std::pair<std::string, std::string>> shown(const Document& document) {
  return {{"text", write_text(document, {})},
          {"junit", all_text(parsed(write_junit(document, {})))},
          {"summary", write_summary(document, {})},
          {"html", all_text(parsed(write_html(document, {})))}};
}

}  // namespace

TEST_CASE("what a table of a section shows is in every format that people read", "[report][sections]") {
  for (const auto& [format, text] : shown(document_with({tabular()}))) {
    INFO(format << ":\n" << text);
    for (const char* const word :
         {"a table of things", "what it is", "the name", "some words", "1234567", "0.00123", "43.2 %",
          "a first sentence", "a second one", "yes", "one; two", "a note below"})
      CHECK_THAT(text, ContainsSubstring(word));
    CHECK(text.find("data alone") == std::string::npos);
    if (format != "html") CHECK(text.find("seen with -v") == std::string::npos);
  }
  const std::string all = write_text(document_with({tabular()}), {Detail::verbose});
  CHECK_THAT(all, ContainsSubstring("seen with -v") && !ContainsSubstring("data alone"));
}

TEST_CASE("paragraphs have their titles, sentences and tables in every format that people read",
          "[report][sections]") {
  for (const auto& [format, text] : shown(document_with({paragraphs()}))) {
    INFO(format << ":\n" << text);
    for (const char* const word :
         {"what was found of chunk", "a doubt about it", "storage", "fla", "90.0 %", "-10.0 %"})
      CHECK_THAT(text, ContainsSubstring(word));
    CHECK(text.find("0.25") == std::string::npos);  // data alone
    if (format != "html") CHECK(text.find("all heads") == std::string::npos);
  }
  CHECK_THAT(write_text(document_with({paragraphs()}), {Detail::verbose}), ContainsSubstring("all heads"));
}

TEST_CASE("JSON has every value of a section under its key, and what is not finite as a word",
          "[report][sections]") {
  const auto json = nlohmann::json::parse(write_json(document_with({tabular(), paragraphs()}), {}));
  const auto& row = json["things"][0];
  CHECK(row["fixture"] == "f");
  CHECK(row["path"] == "f.h5");
  CHECK(row["name"] == "the name");
  CHECK(row["count"] == 1234567);
  CHECK(row["figure"] == 0.00123456789);
  CHECK(row["share"] == 0.4321);
  CHECK(row["along"] == nlohmann::json::array({1e-6, 0, "inf", 1e-3}));
  CHECK(row["sentences"] == nlohmann::json::array({"a first sentence", "a second one"}));
  CHECK(row["flag"] == true);
  CHECK(row["list"].size() == 2);
  CHECK(row["nothing"].is_null());
  CHECK(row["only_verbose"] == "seen with -v");
  CHECK(row["only_data"] == "data alone");
  CHECK_FALSE(row.contains("verdict"));
  const auto& found = json["findings"][0];
  CHECK(found["raw"] == 0.5);
  CHECK(found["axes"][1]["share"] == -0.1);
  CHECK(found["heads"][0]["error"] == nlohmann::json::array({1, 2}));
  CHECK(found["windows"]["first"] == nlohmann::json::array({0, 64}));
  CHECK(found["windows"]["rms_ratio"] == nlohmann::json::array({0.25, "inf"}));
  CHECK(json["summary"]["exit_code"] == 0);
}

TEST_CASE("sections of one key are one array, in their order", "[report][sections]") {
  Section second = tabular();
  second.title = "another table", second.entries[0].values[0] = std::string("another name");
  const Document document = document_with({tabular(), second});
  const auto json = nlohmann::json::parse(write_json(document, {}));
  REQUIRE(json["things"].size() == 2);
  CHECK(json["things"][1]["name"] == "another name");
  for (const auto& [format, text] : shown(document)) {
    INFO(format);
    CHECK(text.find("a table of things") < text.find("another table"));
    CHECK_THAT(text, ContainsSubstring("another name"));
  }
}

TEST_CASE("a section about no fixture is shown too, in every format", "[report][sections]") {
  Document document = document_with({tabular(""), paragraphs("")});
  document.problems.clear();
  for (const auto& [format, text] : shown(document)) {
    INFO(format);
    CHECK_THAT(text, ContainsSubstring("a table of things") && ContainsSubstring("what was found of chunk"));
  }
  const auto json = nlohmann::json::parse(write_json(document, {}));
  CHECK_FALSE(json["things"][0].contains("path"));
}

TEST_CASE("an empty section is an empty array in JSON, and breaks nothing", "[report][sections]") {
  Section empty = tabular(), bare;
  empty.entries.clear();
  bare.key = "bare";
  Section without_rows = paragraphs();
  without_rows.entries[0].tables[0].rows.clear();
  without_rows.entries[0].tables[2].rows.clear();
  const Document document = document_with({empty, bare, without_rows});
  const auto json = nlohmann::json::parse(write_json(document, {}));
  CHECK(json["things"] == nlohmann::json::array());
  CHECK(json["bare"] == nlohmann::json::array());
  CHECK(json["findings"][0]["axes"] == nlohmann::json::array());
  CHECK(json["findings"][0]["windows"]["first"] == nlohmann::json::array());
  for (const auto& [format, text] : shown(document)) {
    INFO(format);
    CHECK_THAT(text, ContainsSubstring("a note below") && !ContainsSubstring("by axis"));
  }
  for (const Detail detail : {Detail::quiet, Detail::verbose}) CHECK_NOTHROW(write_text(document, {detail}));
}

TEST_CASE("verdicts of entries are counted, shown and explained in every format", "[report][sections]") {
  Section section = tabular();
  const Entry entry = section.entries[0];
  section.entries = {judged(entry, Verdict::pass, ""), judged(entry, Verdict::fail, "five is more than one"),
                     judged(entry, Verdict::inconclusive, "nobody knows"), entry};
  Section found = paragraphs();
  found.entries[0] = judged(found.entries[0], Verdict::fail, "it breaks somewhere");
  const Document document = document_with({section, found});
  CHECK(exit_code(document) == 1);
  for (const auto& [format, text] : shown(document)) {
    INFO(format << ":\n" << text);
    for (const char* const reason : {"five is more than one", "nobody knows", "it breaks somewhere"})
      CHECK_THAT(text, ContainsSubstring(reason));
  }
  const std::string quiet = write_text(document, {Detail::quiet});
  CHECK_THAT(quiet,
             ContainsSubstring("FAIL") && ContainsSubstring("INCONCLUSIVE") && !ContainsSubstring("PASS "));
  const auto json = nlohmann::json::parse(write_json(document, {}));
  CHECK(json["things"][1]["verdict"] == "fail");
  CHECK(json["things"][1]["reason"] == "five is more than one");
  CHECK_FALSE(json["things"][3].contains("verdict"));
  CHECK(json["summary"]["failed"] == 2);
  const pugi::xml_document junit = parsed(write_junit(document, {}));
  CHECK(junit.child("testsuites").attribute("tests").as_int() == 4);
  CHECK(junit.child("testsuites").attribute("failures").as_int() == 3);
  const std::string github = write_github(document, {});
  CHECK_THAT(github, ContainsSubstring("::error file=f.h5,title=FAIL f%3A") &&
                         ContainsSubstring("::warning file=f.h5,title=INCONCLUSIVE f%3A") &&
                         ContainsSubstring("it breaks somewhere"));
}

TEST_CASE("quiet text leaves out what has no verdict", "[report][sections]") {
  CHECK(write_text(document_with({tabular(), paragraphs()}), {Detail::quiet}).empty());
}

TEST_CASE("sentences of sections without verdicts are notices on GitHub", "[report][sections]") {
  const std::string text = write_github(document_with({tabular(), paragraphs()}), {});
  CHECK_THAT(text,
             ContainsSubstring("::notice file=f.h5,title=what was found of chunk%2C f::a doubt about it\n"));
  CHECK_THAT(text, ContainsSubstring("::a first sentence; a second one\n"));
}

TEST_CASE("figures that are not finite, and extreme ones, break no format", "[report][sections]") {
  for (const double value : {not_a_number, infinity, -infinity, 0.0, -0.0, 1e-320, 1e308, -1e-5}) {
    Section section = tabular(), found = paragraphs();
    section.entries[0].values[3] = section.entries[0].values[4] = value;
    section.entries[0].values[5] = std::vector<double>{value, value, 1};
    for (auto& row : found.entries[0].tables[0].rows) row[2] = value;
    found.entries[0].tables[2].rows[0][1] = value;
    const Document document = document_with({section, found});
    INFO(value);
    const auto json = nlohmann::json::parse(write_json(document, {}));
    const auto& figure = json["things"][0]["figure"];
    if (std::isfinite(value))
      CHECK(figure == value);
    else
      CHECK(figure == (std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"));
    CHECK(json["findings"][0]["windows"]["rms_ratio"][0] == figure);
    for (const auto& [format, text] : shown(document)) {
      INFO(format);
      CHECK_THAT(text, ContainsSubstring("the name"));
      CHECK_THAT(text, !ContainsSubstring("-0.0 %"));
    }
    const auto page = parsed(write_html(document, {}));
    for (const pugi::xpath_node& path : page.select_nodes("//path")) {
      const std::string data = path.node().attribute("d").value();
      CHECK((data.find("nan") == std::string::npos && data.find("inf") == std::string::npos));
    }
  }
}

TEST_CASE("a series may be empty, of one value, or long", "[report][sections]") {
  for (const std::size_t length : {0, 1, 1000}) {
    Section section = tabular();
    section.entries[0].values[5] = std::vector<double>(length, 0.5);
    const Document document = document_with({section});
    CHECK(nlohmann::json::parse(write_json(document, {}))["things"][0]["along"].size() == length);
    for (const auto& [format, text] : shown(document)) CHECK_THAT(text, ContainsSubstring("the name"));
  }
}

TEST_CASE("odd characters in a section, its path and its keys steer nothing and lose nothing",
          "[report][sections]") {
  const std::string evil =
      "<b>&amp;\"'>]]>--> | `x` \x1b[31m\r\n::error::%0A\xff\xc3\x28 \xe2\x80\xae \xc2\x9b";
  const std::string seen = "\\x1b[31m\\x0d\\x0a";
  Section section = tabular(evil), found = paragraphs(evil);
  for (Section* const one : {&section, &found}) {
    one->title = evil;
    one->notes = {evil};
    Entry& entry = one->entries[0];
    entry = judged(entry, Verdict::fail, evil);
    if (!entry.title.empty()) entry.title = evil;
    for (Value& value : entry.values) {
      if (std::holds_alternative<std::string>(value)) value = evil;
      if (std::holds_alternative<std::vector<std::string>>(value))
        value = std::vector<std::string>{evil, evil};
    }
    for (Table& table : entry.tables) {
      table.title = evil;
      for (auto& row : table.rows)
        for (Value& value : row)
          if (std::holds_alternative<std::string>(value)) value = evil;
    }
  }
  Document document = document_with({section, found});
  document.problems[0] = {evil, evil, evil, evil, {evil}};
  const auto json = nlohmann::json::parse(write_json(document, {}));
  CHECK(json["things"].size() == 1);
  CHECK(json["findings"].size() == 1);
  for (const auto& [format, text] : shown(document)) {
    INFO(format << ":\n" << text);
    CHECK_THAT(text, ContainsSubstring(format == "summary" ? markdown("\x1b[31m\r\n") : seen));
    CHECK_THAT(text, ContainsSubstring("1234567"));  // the section is there
    CHECK_FALSE(has_control_characters(text));
    CHECK(text.find("\xe2\x80\xae") == std::string::npos);
    CHECK(text.find("\xc2\x9b") == std::string::npos);
  }
  CHECK(write_html(document, {}).find("<b>") == std::string::npos);
  check_workflow_commands(write_github(document, {}));
  check_markdown_tables(write_summary(document, {}));
}

TEST_CASE("a scatter of two columns is drawn for the rows that have both, in the page alone") {
  Section section;
  section.key = "rows", section.tabular = true;
  section.columns = {{"name", {}}, {"ms", {}, Show::figure}, {"error", {}, Show::figure}};
  section.scatter = {0, 1, 2};
  section.add({std::string("ours"), 0.9, 4e-3});
  section.add({std::string("theirs <fla>"), 2.1, 5e-3});
  section.add({std::string("unmeasured"), 1.0, Value()});
  Document document;
  document.sections = {section};
  const std::string page = write_html(document, {});
  pugi::xml_document parsed;
  REQUIRE(parsed.load_string(page.c_str()));
  const pugi::xml_node drawing = parsed.select_node("//svg").node();
  CHECK_THAT(drawing.child_value("title"), ContainsSubstring("error over ms"));
  CHECK_THAT(drawing.child("path").next_sibling("path").attribute("d").value(), ContainsSubstring("h0M"));
  std::string names;
  for (const auto& text : drawing.children("text")) names += text.child_value(), names += '\n';
  CHECK_THAT(names, ContainsSubstring("ours\n") && ContainsSubstring("theirs <fla>\n") &&
                        !ContainsSubstring("unmeasured"));
}

}  // namespace sections_tests

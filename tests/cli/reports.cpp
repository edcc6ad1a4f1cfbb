// Several reports of one run: they agree with each other.
#include <cmath>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace reports_tests {

using namespace kda_check::test;

namespace {

std::string reports_in(const Folder& folder) {
  return " --report html=" + (folder / "out.html").string() +
         " --report junit=" + (folder / "out.xml").string() +
         " --report github=" + (folder / "out.txt").string() +
         " --report summary=" + (folder / "out.md").string() + " --json " + (folder / "out.json").string();
}

pugi::xml_document parsed(const fs::path& path) {
  pugi::xml_document document;
  REQUIRE(document.load_file(path.c_str(), pugi::parse_default | pugi::parse_doctype));
  return document;
}

}  // namespace

TEST_CASE("every report has a row for each stage", "[cli]") {
  const Folder folder;
  const Output output = program("run " + case_fixtures() + "/fla_bf16_prefill.h5 --variant chunk --stages" +
                                " --against oracle" + reports_in(folder));
  CHECK(output.code == 0);
  const auto json = nlohmann::json::parse(read_file(folder / "out.json"));
  REQUIRE(json["stages"].size() == 1);
  const pugi::xml_document page = parsed(folder / "out.html"), junit = parsed(folder / "out.xml");
  const std::string lines = junit.select_node("//system-out").node().child_value();
  const std::string summary = read_file(folder / "out.md");
  const std::string rows = "//table[thead/tr/th[1]='stage']/tbody/tr";
  CHECK(json["stages"][0]["stages"].size() == 9);
  CHECK(page.select_nodes(rows.c_str()).size() == 9);
  for (const auto& stage : json["stages"][0]["stages"]) {
    const std::string name = stage["name"];
    INFO(name);
    CHECK(page.select_nodes((rows + "[td[1]='" + name + "']").c_str()).size() == 1);
    CHECK_THAT(lines, ContainsSubstring("\n    " + name + " "));
    std::string row = "| ";
    for (const char letter : name) row += letter == '_' ? std::string("\\_") : std::string(1, letter);
    CHECK_THAT(summary, ContainsSubstring(row + " |"));
  }
  // The stages of an answer are one test: they have twins.
  std::size_t tests = json["stages"].size();
  for (const auto& item : json["cases"]) tests += item["tensors"].size();
  CHECK(json["stages"][0]["verdict"] == "pass");
  CHECK(junit.select_nodes("//testcase").size() == tests);
}

}  // namespace reports_tests

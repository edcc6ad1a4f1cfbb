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

TEST_CASE("all reports of a run stand beside the text and have the figures of the JSON", "[cli]") {
  const Folder folder;
  const Output output = program("run " + small + on_cpu + " --limit scaled_ulp=5" + reports_in(folder));
  CHECK(output.code == 1);
  CHECK_THAT(output.out, ContainsSubstring("FAIL"));
  const auto json = nlohmann::json::parse(read_file(folder / "out.json"));
  const pugi::xml_document page = parsed(folder / "out.html"), junit = parsed(folder / "out.xml");

  std::size_t tensors = 0, failures = 0, figures = 0;
  const pugi::xpath_node_set blocks = page.select_nodes("//details");
  for (const auto& item : json["cases"])
    for (const auto& tensor : item["tensors"]) {
      REQUIRE(tensors < blocks.size());
      const pugi::xml_node block = blocks[tensors++].node();
      failures += tensor["verdict"] == "fail";
      for (const auto& [name, value] : tensor["metrics"].items()) {
        const std::string shown =
            block.select_node((".//li[b='" + name + "']/data[1]").c_str()).node().attribute("value").value();
        if (value.is_string()) CHECK(shown == value.get<std::string>());
        if (value.is_number()) CHECK(std::stod(shown) == value.get<double>());
        ++figures;
      }
    }
  CHECK(blocks.size() == tensors);
  CHECK(failures > 0);
  CHECK(figures > 10 * tensors);
  CHECK(page.select_nodes("//details[@open]").size() == failures);
  CHECK(page.select_nodes("//figure").size() > tensors);  // two of o with its one head, one of final_state
  CHECK(junit.child("testsuites").attribute("failures").as_uint() == failures);
  CHECK(junit.select_nodes("//testcase").size() == tensors);
  CHECK_THAT(read_file(folder / "out.txt"), ContainsSubstring("::error "));
  CHECK_THAT(read_file(folder / "out.md"), ContainsSubstring("## ❌ kda-check run: FAIL"));
}

TEST_CASE("reports are the same bytes on any number of threads", "[cli]") {
  const Folder folder;
  std::string page[2], junit[2];
  for (const int threads : {1, 3}) {
    const std::string words = "run " + small + on_cpu + reports_in(folder);
    CHECK(program(words + " --threads " + std::to_string(threads)).code == 0);
    std::string text = read_file(folder / "out.html");
    // The command is on the page.
    const std::size_t at = text.find("--threads " + std::to_string(threads));
    REQUIRE(at != std::string::npos);
    text.erase(at, 11);
    page[threads / 3] = text;
    junit[threads / 3] = read_file(folder / "out.xml");
  }
  CHECK(page[0] == page[1]);
  CHECK(junit[0] == junit[1]);
}

TEST_CASE("diff draws as well, and an unreadable file is an error in every report", "[cli]") {
  const Folder folder;
  CHECK(program("diff " + small + ":fla_chunk " + small + ":torch_fp64 --limit rms_ratio=1" +
                reports_in(folder))
            .code <= 1);
  CHECK(parsed(folder / "out.html").select_nodes("//figure").size() >= 3);
  CHECK(program("run /no/such.h5" + reports_in(folder)).code == 3);
  CHECK(parsed(folder / "out.xml").child("testsuites").attribute("errors").as_int() == 1);
  for (const char* const name : {"out.html", "out.txt", "out.md"})
    CHECK_THAT(read_file(folder / name), ContainsSubstring("/no/such.h5"));
}

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

// selftest as a user meets it: the suite of pull requests is what catches wrong kernels.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

using namespace kda_check::test;

TEST_CASE("every wrong kernel is caught by a line of the suite of pull requests, no variant by any",
          "[cli][selftest]") {
  const Folder folder;
  const Output output = program("selftest --json " + (folder / "out.json").string());
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  const auto document = nlohmann::json::parse(read_file(folder / "out.json"));
  CHECK(document["summary"]["exit_code"] == 0);
  std::size_t wrong = 0;
  for (const auto& row : document["rows"])
    if (!row["healthy"].get<bool>()) {
      ++wrong;
      INFO(row["name"]);
      CHECK_THAT(row["in_suite"].get<std::string>(), ContainsSubstring("@ci:"));
    } else if (row.contains("in_suite")) {
      CHECK(row["in_suite"] == "");
    }
  CHECK(wrong == 48);                           // 32 forwards, 16 backwards
  REQUIRE(document["suite_runs"].size() == 2);  // on one thread and on two
  for (const auto& run : document["suite_runs"]) {
    CHECK(run["passed"].get<int>() > 1000);
    CHECK(run["alarms"].empty());
  }
  CHECK(document["suite_runs"][0]["passed"] == document["suite_runs"][1]["passed"]);
  CHECK_THAT(output.out, ContainsSubstring("48 wrong kernels caught, 0 missed"));
}

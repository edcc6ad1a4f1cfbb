// selftest as a user meets it: the suite of pull requests is what catches wrong kernels.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace selftest_tests {

using namespace kda_check::test;

TEST_CASE("every wrong kernel is caught by a line of the suite of pull requests, no variant by any",
          "[cli][selftest]") {
  const Folder folder;
  const Output output = program("selftest --json " + (folder / "out.json").string());
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  const auto document = nlohmann::json::parse(read_file(folder / "out.json"));
  CHECK(document["summary"]["exit_code"] == 0);
  std::size_t wrong = 0, percents_in_16_bits = 0, places_in_16_bits = 0, wrong_in_full = 0;
  for (const auto& row : document["rows"])
    if (!row["healthy"].get<bool>()) {
      ++wrong;
      INFO(row["name"]);
      CHECK_THAT(row["in_suite"].get<std::string>(), ContainsSubstring("@ci:"));
      const std::string size = row["size"], dtype = row["dtype"];
      if (size.empty()) continue;
      CHECK_THAT(row["in_suite"].get<std::string>(), ContainsSubstring(": oracle: "));
      if (dtype == "bf16" || dtype == "fp16")
        ++(size == "1 %" ? percents_in_16_bits : size == "100 %" ? wrong_in_full : places_in_16_bits);
    } else if (row.contains("in_suite")) {
      CHECK(row["in_suite"] == "");
    }
  CHECK(wrong == 285);  // 269 forwards, 16 backwards
  CHECK(percents_in_16_bits == 2 * 22);
  CHECK(places_in_16_bits == 2 * 32);
  CHECK(wrong_in_full == 2 * 20);
  REQUIRE(document["suite_runs"].size() == 2);  // on one thread and on two
  for (const auto& run : document["suite_runs"]) {
    CHECK(run["passed"].get<int>() > 1000);
    CHECK(run["alarms"].empty());
  }
  CHECK(document["suite_runs"][0]["passed"] == document["suite_runs"][1]["passed"]);
  CHECK_THAT(output.out, ContainsSubstring("285 wrong kernels caught, 0 missed"));
}

TEST_CASE(
    "at the shape of production wrong kernels are caught in full and in one place, at 1 % or said to be "
    "below "
    "what is seen",
    "[cli][selftest]") {
  const Folder folder;
  const Output output = program("selftest --production --json " + (folder / "out.json").string());
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  const auto document = nlohmann::json::parse(read_file(folder / "out.json"));
  std::size_t in_one_place = 0, not_seen = 0;
  for (const auto& row : document["rows"]) {
    const std::string size = row["size"], finding = row["finding"];
    INFO(row["name"] << row["dtype"] << size);
    CHECK(row["pass"] == "forward");
    if (size.find(" in ") != std::string::npos) {
      ++in_one_place;
      CHECK(finding == "caught");
    }
    if (finding != "not seen") continue;
    ++not_seen;
    CHECK((size == "1 %" || row["name"] == "state_read_in_bf16"));
  }
  CHECK(in_one_place == 3 * 31 + 1);
  CHECK(not_seen < 12);
  CHECK_FALSE(document.contains("suite_runs"));
}

}  // namespace selftest_tests

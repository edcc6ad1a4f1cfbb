// selftest as a user meets it.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace selftest_tests {

using namespace kda_check::test;

TEST_CASE("wrong kernels that are named are tried alone, and a name that nobody has is refused",
          "[cli][selftest]") {
  const Folder folder;
  const Output output = program("selftest gate_late --json " + (folder / "out.json").string());
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  const auto document = nlohmann::json::parse(read_file(folder / "out.json"));
  std::size_t wrong = 0;
  for (const auto& row : document["rows"])
    if (!row["healthy"].get<bool>()) {
      CHECK(row["name"] == "gate_late");
      if (row["size"] != "in full") continue;
      ++wrong;
      CHECK_THAT(row["in_suite"].get<std::string>(), ContainsSubstring("@ci:"));
    }
  CHECK(wrong == 2);
  CHECK_FALSE(document.contains("suite_runs"));

  // Not known; not wrong.
  for (const std::string words : {"gate_latte", "naive", "looks_back"}) {
    const Output unknown = program("selftest " + words);
    INFO(words);
    CHECK(unknown.code == 2);
    CHECK_THAT(unknown.err, ContainsSubstring("no wrong kernel that is tried here is called"));
  }
}

}  // namespace selftest_tests

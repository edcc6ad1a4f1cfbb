// What a suite asks for and what the command line says about it, together.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/sampled.hpp"

namespace suites_tests {

using namespace kda_check::test;

namespace {

/// A suite in a folder with a.h5, which has recorded answers, and plain.h5, which has none.
struct Suite {
  Folder folder;
  std::string target = "@" + (folder / "mine.txt").string();

  explicit Suite(const std::string& text) {
    fs::copy_file(small, folder / "a.h5");
    program("make control:T=4,H=1 -o " + (folder / "plain.h5").string());
    std::ofstream(folder / "mine.txt") << text;
  }
};

}  // namespace

TEST_CASE("a reference that some lines have and others lack is held against where it is", "[cli][suite]") {
  const Suite suite("a.h5 --variant recurrent\nplain.h5 --variant recurrent\n");
  const Output output = program("run " + suite.target + " --against oracle,fla_chunk --json");
  INFO(output.err);
  CHECK(output.code == 0);
  const auto document = nlohmann::json::parse(output.out);
  std::size_t against = 0, plain = 0;
  for (const auto& item : document["cases"]) {
    against += item["against"] == "fla_chunk";
    plain += item["path"] == (suite.folder / "plain.h5").string();
  }
  CHECK(against == 1);
  CHECK(plain >= 1);
  // Where nobody has it, it is a typing error.
  const Output nowhere = program("run " + suite.target + " --against oracle,fla_chnk");
  CHECK(nowhere.code == 2);
  CHECK_THAT(nowhere.err, ContainsSubstring("no fixture has a group expected/fla_chnk"));
}

TEST_CASE("each line's rows are headed by its own oracle", "[cli][suite]") {
  const Suite suite(
      "a.h5 --variant naive --recorded none --against oracle\nplain.h5 --variant naive --oracle fp64\n");
  const Output output = program("run " + suite.target);
  const std::size_t exact = output.out.find("against the oracle (double-double recurrence)"),
                    fast = output.out.find("against the oracle (fp64 recurrence)");
  REQUIRE(exact != std::string::npos);
  REQUIRE(fast != std::string::npos);
  CHECK(exact < fast);
}

TEST_CASE("no report goes over a suite, a file of rules or a baseline that is read", "[cli][suite]") {
  const Suite suite("control:T=4 --variant naive\n");
  const std::string text = (suite.folder / "mine.txt").string(), rules = (suite.folder / "t.toml").string(),
                    rows = (suite.folder / "b.tsv").string();
  std::ofstream(rules) << "[[rule]]\nscaled_ulp = 40\nreason = \"r\"\n";
  REQUIRE(program("run " + suite.target + " --baseline " + rows + " --update-baseline").code == 0);
  const std::string options = " --tolerance " + rules + " --baseline " + rows;
  for (const std::string& path : {text, rules, rows}) {
    const std::string before = read_file(path);
    for (const char* const report : {" --json=", " --report html="}) {
      const Output output = program("run " + suite.target + options + report + path);
      INFO(output.err);
      CHECK(output.code == 2);
      CHECK_THAT(output.err, ContainsSubstring("is an input and an output"));
    }
    CHECK(read_file(path) == before);
  }
}

TEST_CASE("a file that is called as one of the program's own suites is not taken for it", "[cli][suite]") {
  const Folder folder;
  fs::create_directories(folder / "cases/fixtures");
  fs::copy_file(case_fixtures() + "/fla_fp16_c32.h5", folder / "cases/fixtures/fla_fp32_small.h5");
  const std::string words = "cd " + (folder / ".").string() + " && $KDA run @smoke --dry-run ";
  const Output both = shell(words + "cases/fixtures/fla_fp32_small.h5");
  CHECK(both.code == 2);
  CHECK(lines(both.err) == 1);
  CHECK_THAT(both.err, ContainsSubstring("two fixtures are called 'cases/fixtures/fla_fp32_small.h5'") &&
                           ContainsSubstring("type yours as ./cases/fixtures/fla_fp32_small.h5"));
  CHECK(shell(words + "./cases/fixtures/fla_fp32_small.h5").code == 0);
}

}  // namespace suites_tests

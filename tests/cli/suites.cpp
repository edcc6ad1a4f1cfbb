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

TEST_CASE("a file of a folder without the answer that is held against is told, not left out",
          "[cli][suite]") {
  const Suite suite("a.h5\n");
  const Output output =
      program("run " + (suite.folder / ".").string() + " --variant recurrent --against fla_chunk");
  CHECK_THAT(output.out, ContainsSubstring("plain.h5") || ContainsSubstring("control:T=4,H=1"));
  CHECK_THAT(output.out, ContainsSubstring("2 fixtures") && ContainsSubstring("1 skipped"));
}

TEST_CASE("a line without the oracle is no contradiction to a command line that names it", "[cli][suite]") {
  const Suite suite("a.h5 --variant naive --recorded none\nplain.h5 --variant naive --oracle none\n");
  const Output output = program("run " + suite.target + " --against oracle");
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  CHECK(output.err.empty());
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

TEST_CASE("a limit of the command line replaces that of a line, whatever its short name", "[cli][suite]") {
  const Suite suite("control:T=17 --variant recurrent --max-ulp 1\n");
  CHECK(program("run " + suite.target).code == 1);
  CHECK(program("run " + suite.target + " --limit max_ulp=1e9").code == 0);
  CHECK(program("run " + suite.target + " --limit max_ulp=none").code == 0);
}

TEST_CASE("a line may have blanks in its words, and a program of the user's", "[cli][suite]") {
  const Suite suite(
      "'a b.h5' --variant none --external \"\\$KDA capture {in} --replace -o {out} --variant naive\" # and "
      "so on\n");
  fs::rename(suite.folder / "plain.h5", suite.folder / "a b.h5");
  const Output output = shell("export KDA; $KDA run " + suite.target);
  INFO(output.out << output.err);
  CHECK(output.code == 0);
  CHECK_THAT(output.out, ContainsSubstring("PASS     external"));
}

TEST_CASE("a typing error in the last line comes before any work", "[cli][suite]") {
  const Suite suite("a.h5 --variant naive\nplain.h5 --varaint naive\n");
  const Output output = program("run " + suite.target + " --json " + (suite.folder / "out.json").string());
  CHECK(output.code == 2);
  CHECK(output.out.empty());
  CHECK_THAT(output.err, ContainsSubstring("did you mean '--variant'") && ContainsSubstring("mine.txt:2"));
  CHECK(suite.folder.entries() == 3);
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

TEST_CASE("the suite of pull requests narrowed to one variant passes on a healthy machine", "[cli][suite]") {
  // Lines that replay what an H100 answered for one variant are not asked of another.
  const kda_check::test::Sampled sample(3);
  INFO(sample.text());
  for (const int part : {1, 2, 3}) {
    if (!sample.has(part - 1)) continue;
    const Output output = program("run @ci --variant recurrent -q --shard " + std::to_string(part) + "/3");
    INFO(output.out.substr(0, 2000) << output.err);
    CHECK(output.code == 0);
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

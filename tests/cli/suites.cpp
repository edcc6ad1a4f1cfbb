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
                    fast = output.out.find("against the oracle (fp64 recurrence, off by at most ");
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

TEST_CASE("a line passes where its verdict and its cause are as written, and fails with both else",
          "[cli][suite]") {
  const std::string wrong = "control:T=16,H=1,K=8,V=8,fault=exp2",
                    healthy = "control:T=16,H=1,K=8,V=8,by=recurrent";
  const Suite right(wrong + " --expect fail:exp2 --incident sglang#30860\n" + healthy + " --expect pass\n");
  const Output output = program("run " + right.target);
  INFO(output.out + output.err);
  CHECK(output.code == 0);
  CHECK_THAT(output.out, ContainsSubstring(
                             "PASS unknown fp32: sglang#30860: FAIL - o: bug: as if the decay is exp2(g)") &&
                             ContainsSubstring("PASS unknown fp32: PASS\n"));
  for (const auto& [line, sentence] :
       {std::pair{wrong + " --expect fail:gate_late",
                  "it is to be FAIL for 'gate_late', and it is FAIL - o: "},
        {wrong + " --expect pass", "it is to be PASS, and it is FAIL - o: bug"},
        {healthy + " --expect fail:exp2", "it is to be FAIL for 'exp2', and it is PASS"}}) {
    const Output other = program("run " + line);
    CHECK(other.code == 1);
    CHECK_THAT(other.out, ContainsSubstring(std::string("FAIL unknown fp32: ") + sentence));
  }
}

TEST_CASE("an output that a regime's words ask for is judged as one in a file", "[cli][suite]") {
  const Folder folder;
  const std::string regime = "serve:T=8,sequences=3,H=1,K=16,V=16,fault=last_row_not_stored",
                    file = (folder / "a.h5").string();
  REQUIRE(program("make " + regime + " -o " + file).code == 0);
  for (const std::string& target : {regime, file}) {
    const Output output = program("run " + target + " --variant none --json");
    CHECK(output.code == 1);
    const auto cases = nlohmann::json::parse(output.out)["cases"];
    REQUIRE(cases.size() == 1);
    CHECK(cases[0]["recorded"] == true);
    CHECK_THAT(cases[0]["reason"].get<std::string>(), ContainsSubstring("(last_row_not_stored)"));
  }
  CHECK_THAT(program("run control:T=16,fault=exp3").err,
             ContainsSubstring("no fault 'exp3'") && ContainsSubstring("kda-check list faults"));
  CHECK_THAT(program("run control:T=16,fault=exp2:3").err, ContainsSubstring("is no place of it"));
  CHECK_THAT(program("run control:T=16,fault=padding_in_slot_0").err,
             ContainsSubstring("would change nothing of the problem"));
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

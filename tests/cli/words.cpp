// The words of a command line: values that are missing, empty, said twice, or meant for something else.
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace words_tests {

using namespace kda_check::test;

namespace {

/// One line, exit code 2, nothing done.
void refused(const std::string& words, const std::string& reason) {
  const Output output = program(words);
  INFO(words << ": " << output.err);
  CHECK(output.code == 2);
  CHECK(output.out.empty());
  CHECK(lines(output.err) == 1);
  CHECK_THAT(output.err, ContainsSubstring(reason));
}

const std::string tails = "run tails:T=17 --variant recurrent ";

}  // namespace

TEST_CASE("an option without its value says so, at the end of a line and before another option", "[cli]") {
  refused(tails + "--recorded", "--recorded: no value; hint: --recorded NAME,...");
  refused(tails + "--recorded -q", "--recorded: no value");
  refused(tails + "--baseline --update-baseline", "--baseline: no value; hint: --baseline FILE.tsv");
  refused("make control:T=4 -o", "-o: no value; hint: -o FILE.h5");
  const Folder folder;
  std::ofstream(folder / "mine.txt") << "control:T=4 --against\n";
  refused("run @" + (folder / "mine.txt").string(), "mine.txt:1");
}

TEST_CASE("an empty value is refused: a variable that is not set turns no gate off", "[cli]") {
  for (const std::string option :
       {"--baseline", "--tolerance", "--json", "--report", "--require", "--variant", "--recorded",
        "--against", "--tensor", "--external", "--shard", "--limit", "--memory-limit", "--color"})
    for (const char* const form : {" ''", "=", "=''"})
      refused(tails + option + form, option + ": an empty value");
  refused(tails + "--invariants=", "--invariants: an empty value");
}

TEST_CASE("an option with one value takes no second one", "[cli]") {
  const Folder folder;
  refused(tails + "--json " + (folder / "a.json").string() + " --json " + (folder / "b.json").string(),
          "--json is given 2 times");
  refused(tails + "--baseline a.tsv --baseline b.tsv", "--baseline is given 2 times");
  refused(tails + "--oracle fp64 --oracle none", "--oracle is given 2 times");
  refused(tails + "--limit scaled_ulp=3 --max-ulp 2 --limit max_ulp=4", "two limits on max_ulp");
  CHECK(folder.entries() == 0);
}

TEST_CASE("a target behind --json is a target, and a path is the path", "[cli]") {
  const Folder folder;
  const std::string json = (folder / "out.json").string();
  const auto document = nlohmann::json::parse(program("run --json control:T=4 --variant naive").out);
  CHECK(document["fixtures"][0]["path"] == "control:T=4");
  CHECK(program("run --json " + json + " control:T=4 --variant naive").code == 0);
  CHECK(nlohmann::json::parse(read_file(json))["summary"]["passed"] == 1);
}

TEST_CASE("a number where a file of rules is wanted, and a share without a floor, are explained", "[cli]") {
  refused(tails + "--tolerance 1e-3", "a number is --rtol 1e-3 --atol X");
  refused(tails + "--rtol 1e-2", "--rtol without --atol: elements near zero could not meet it");
  CHECK(program(tails + "--rtol 1e-2 --atol 1e-6").code == 0);
}

TEST_CASE("an element type has the names that other tools have for it", "[cli]") {
  const auto dtype_of = [](const std::string& word) {
    const auto document =
        nlohmann::json::parse(program("run control:T=4 --variant recurrent --json --dtype " + word).out);
    return document["cases"][0]["dtype"].get<std::string>();
  };
  for (const char* const word : {"bf16", "bfloat16", "torch.bfloat16"}) CHECK(dtype_of(word) == "bf16");
  for (const char* const word : {"fp16", "half", "float16", "torch.float16"}) CHECK(dtype_of(word) == "fp16");
  for (const char* const word : {"fp32", "float32", "torch.float32"}) CHECK(dtype_of(word) == "fp32");
}

TEST_CASE("one thing is one thing in what is counted", "[cli]") {
  const Output one = program("run control:T=4 --variant recurrent --tensor o");
  CHECK_THAT(one.out, ContainsSubstring("PASS: 1 fixture, 1 comparison of 1 tensor: 1 passed"));
}

TEST_CASE("every command that prints rows has -q, and explain takes several targets", "[cli]") {
  for (const char* const command : {"explain --only overflow", "explain --only growth", "power", "show"}) {
    const std::string words = std::string(command) + " " + small;
    const Output quiet = program(words + " -q");
    INFO(command << ": " << quiet.err);
    CHECK(quiet.code == 0);
    CHECK(lines(quiet.out) < lines(program(words).out));
  }
  const auto both =
      nlohmann::json::parse(program("explain " + small + " control:T=16 --only overflow --json").out);
  CHECK(both["forecasts"].size() == 2);
}

}  // namespace words_tests

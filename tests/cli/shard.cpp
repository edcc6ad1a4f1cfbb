// --shard: the parts of a run, through the program.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "support/catch.hpp"
#include "support/program.hpp"

namespace shard_tests {

namespace fs = std::filesystem;
using namespace kda_check::test;

namespace {

using Cases = std::multiset<std::string>;

/// What was compared, with its number in the whole and with which verdict and figures, without where the
/// files and the suite are.
Cases cases_of(const std::string& words, const std::string& here = "") {
  const Output output = here.empty() ? program("run " + words + " --json")
                                     : shell("cd " + here + " && $KDA run " + words + " --json");
  INFO(words << ": " << output.err);
  REQUIRE(output.code == 0);
  Cases cases;
  const auto document = nlohmann::json::parse(output.out);
  for (const auto& item : document["cases"]) {
    nlohmann::json known = item;
    for (const char* const where : {"path", "place", "repro"}) known.erase(where);
    cases.insert(known.dump());
  }
  return cases;
}

std::string shard(std::size_t index, std::size_t count) {
  return std::string(" --shard ").append(std::to_string(index)).append("/").append(std::to_string(count));
}

std::string mine(const fs::path& folder) { return std::string("@").append((folder / "mine.txt").string()); }

/// Writes mine.txt there: regimes and a folder of fixtures, small enough to run often. Returns the folder.
fs::path suite_in(const fs::path& folder) {
  fs::create_directories(folder / "files");
  fs::copy_file(small, folder / "files/a.h5");
  fs::copy_file(case_fixtures() + "/fla_fp16_c32.h5", folder / "files/b.h5");
  std::ofstream(folder / "mine.txt")
      << "control:T=4,H=1 control:T=5,H=1 control:T=6,H=1 --variant recurrent\n"
         "control:T=4,H=1 control:T=5,H=1 --variant recurrent --dtype fp64\n"
         "control:T=4,H=1 control:T=4,H=1 --variant naive\n"
         "files --variant recurrent\n";
  return folder;
}

}  // namespace

TEST_CASE("the shards of a suite are together the whole, and no case is in two", "[cli][shard]") {
  const Folder folder;
  const std::string target = mine(suite_in(folder / "suite")) + " control:T=7,H=1 --against oracle,all";
  const Cases whole = cases_of(target);
  CHECK(whole.size() > 10);
  CHECK(cases_of(target + shard(1, 1)) == whole);
  for (const std::size_t count : {2u, 3u, 7u}) {
    Cases together;
    std::size_t used = 0;
    for (std::size_t index = 1; index <= count; ++index) {
      const Cases part = cases_of(target + shard(index, count));
      used += !part.empty();
      together.insert(part.begin(), part.end());
    }
    INFO(count << " shards, " << used << " not empty");
    CHECK(together == whole);
    CHECK(used > 1);
  }
}

TEST_CASE("a shard depends on what is written, not on where it lies or on who runs it", "[cli][shard]") {
  const Folder folder;
  const fs::path here = folder / "here", there = folder / "there";
  suite_in(here);
  suite_in(there);
  for (const std::size_t index : {1u, 2u}) {
    const std::string part = shard(index, 2);
    const Cases cases = cases_of(mine(here) + part);
    CHECK(cases == cases_of(mine(there) + part));
    CHECK(cases == cases_of("@./mine.txt" + part, here.string()));
    CHECK(cases == cases_of(mine(here) + part + " --threads 1 --worst 5"));
  }
}

TEST_CASE("the shards of a run take about the same time", "[cli][shard]") {
  // Eight problems that take as long as one another: two for each of four.
  std::string words = "run --variant naive --json";
  for (const char* const seed : {"1", "2", "3", "4", "5", "6", "7", "8"})
    words += std::string(" control:T=4,H=1,seed=") + seed;
  for (std::size_t index = 1; index <= 4; ++index)
    CHECK(nlohmann::json::parse(program(words + shard(index, 4)).out)["cases"].size() == 2);
}

TEST_CASE("an empty shard of something passes with one line, and a shard of nothing does not",
          "[cli][shard]") {
  const std::string words = "run control:T=4,H=1 --variant naive";
  std::size_t empty = 0;
  for (const std::size_t index : {1u, 2u}) {
    const Output output = program(words + shard(index, 2));
    CHECK(output.code == 0);
    if (output.out.find("nothing to do") == std::string::npos) continue;
    ++empty;
    CHECK(lines(output.out) == 1);
    CHECK_THAT(output.out, ContainsSubstring("has none of the 1 cases"));
    const auto document = nlohmann::json::parse(program(words + shard(index, 2) + " --json").out);
    CHECK(document["summary"]["exit_code"] == 0);
    CHECK(document["summary"]["passed"] == 0);
    CHECK_THAT(document["nothing_to_do"].get<std::string>(), ContainsSubstring("shard"));
    // What nobody is to answer in any part is missed in every part.
    CHECK(program(words + shard(index, 2) + " --require nothing").code == 1);
  }
  CHECK(empty == 1);
  CHECK(program("run --shard 1/2").code == 2);
  const Folder folder;
  std::ofstream(folder / "n.txt") << "control:T=4,H=1 --variant naive --dtype fp32\n";
  for (const char* const part : {"", " --shard 1/2", " --shard 2/2"})
    CHECK(program("run @" + (folder / "n.txt").string() + " --dtype fp64" + part).code == 1);
  CHECK(program("run " + (folder / ".").string() + " --shard 1/2").code == 2);
}

TEST_CASE("a shard that is empty passes beside a baseline that is about the other shards", "[cli][shard]") {
  const Folder folder;
  const std::string words = "run control:T=4,H=1 --variant naive --baseline " + (folder / "b.tsv").string();
  REQUIRE(program(words + " --update-baseline").code == 0);
  for (const std::size_t index : {1u, 2u}) {
    const Output output = program(words + shard(index, 2));
    INFO(output.out << output.err);
    CHECK(output.code == 0);
    CHECK(output.err.empty());
  }
}

TEST_CASE("what is no shard is refused", "[cli][shard]") {
  for (const char* const text :
       {"0/2", "3/2", "1", "1/0", "/2", "1/", "a/2", "1/2/3", "-1/2", "1/2x", "''"}) {
    const Output output = program(std::string("run control --shard ") + text);
    INFO(text << ": " << output.err);
    CHECK(output.code == 2);
    CHECK(lines(output.err) == 1);
    CHECK_THAT(output.err, ContainsSubstring("--shard"));
  }
  const Folder folder;
  std::ofstream(folder / "mine.txt") << "control:T=4 --shard 1/2\n";
  const Output output = program("run @" + (folder / "mine.txt").string());
  CHECK(output.code == 3);
  CHECK_THAT(output.err, ContainsSubstring("mine.txt:1"));
}

}  // namespace shard_tests
